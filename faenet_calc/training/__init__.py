"""Labelled data sets to checkpoints.

In: a :class:`~faenet_calc.training.config.TrainConfig` and data sets. Out: a run folder with the best weights, the
state to resume from, and curves. May import ``data``, ``potential`` and what lies below them, not ``calculator``.
"""
