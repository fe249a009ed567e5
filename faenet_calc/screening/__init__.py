"""Slabs and adsorbates to a table of adsorption energies.

In: slabs, adsorbates and a calculator. Out: a folder with relaxed structures, a ranked table and a report. May import
``simulate`` and what lies below it.
"""
