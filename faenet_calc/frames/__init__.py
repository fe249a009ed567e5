"""Graphs to frames.

In: an AtomGraph. Out: :class:`~faenet_calc.frames.frames.Frames`, the weighted O(3) frames over which a prediction is
averaged. May import ``graphs`` and what lies below it.
"""
