"""Warnings on the command line."""

import warnings

import click

from faenet_calc.cli.options import plain_warnings


def test_warnings_are_printed_once_and_deprecations_are_not(capsys):
    with plain_warnings(click.Context(click.Command("test"))):
        for _ in range(2):
            warnings.warn("a slab has no vacuum", UserWarning, stacklevel=1)
            warnings.warn("an old function of another package", DeprecationWarning, stacklevel=1)
    assert capsys.readouterr().err == "Warning: a slab has no vacuum\n"
