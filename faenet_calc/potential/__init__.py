"""Graphs to predictions: the energy surface, its settings and its file.

In: an AtomGraph. Out: :class:`~faenet_calc.potential.prediction.Prediction` in eV and Å, averaged over frames. Holds
checkpoints, shipped models, committees and the import of upstream weights. May import ``network`` and what lies below
it.
"""
