"""Results to figures and pages.

In: results of training and evaluation. Out: self-contained HTML pages. May import ``training``, ``simulate`` and what
lies below them.
"""
