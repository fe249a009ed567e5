"""Files to labelled data sets.

In: files with energies, forces and stress. Out: :class:`~faenet_calc.data.dataset.GraphDataset`, splits, statistics and
reports on data quality. May import ``graphs`` and what lies below it.
"""
