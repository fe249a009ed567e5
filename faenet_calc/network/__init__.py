"""FAENet, the network evaluated on structures in their frames.

In: structures copied into their frames. Out: :class:`~faenet_calc.network.faenet.NetworkOutput`, energies and in-frame
forces in the units of the network. May import ``frames`` and what lies below it.
"""
