"""Figures and self-contained HTML pages.

In: results of training and evaluation. Out: matplotlib figures and HTML files that refer to no other file.
May import ``training``, ``screening`` and what lies below them.
"""
