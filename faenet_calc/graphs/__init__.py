"""Conversion of structures to periodic graphs.

In: structures (ASE Atoms, pymatgen, PyG, files). Out: :class:`~faenet_calc.graphs.graph.AtomGraph`, a batch of periodic
graphs; one structure is a batch of one. May import ``elements`` and the modules at the package root.
"""
