"""The innermost operations of the network, in torch (``plain``) and compiled for the processor (``native``).

Both have the same functions. The compiled ones read every large array once; they need a C compiler, once per machine.
"""

from types import ModuleType

from torch import Tensor

from faenet_calc.network.kernels import native, plain


def fastest_for(*values: Tensor | None) -> ModuleType:
    """The module whose functions serve these tensors together."""
    given = [value for value in values if value is not None]
    alike = all(value.dtype == given[0].dtype for value in given)
    return native if alike and all(native.serves(value) for value in given) else plain
