"""Number types of options: finite floats, optionally within a range."""

import math
from typing import Any

import click


class FiniteFloat(click.FloatRange):
    """A float within a range that is neither NaN nor infinite, which click's own range would accept."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click.ParamType."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number

    def _describe_range(self) -> str:
        """Nothing in help texts for an unlimited range, where click would print "None"."""
        return "" if self.min is None and self.max is None else super()._describe_range()


FINITE = FiniteFloat()
POSITIVE = FiniteFloat(min=0, min_open=True)
NOT_NEGATIVE = FiniteFloat(min=0)
