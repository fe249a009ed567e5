"""Detection of data sets in which the meaning of the energy changes with composition or from file to file.

Where all structures with oxygen, say, hold adsorption energies and all others total energies, a fit of element
references hides the change in the reference of oxygen. So one side is predicted from the other: with references e_Z
fitted to the structures without oxygen (A), the energies of those with oxygen (B) must follow

    E = a P + Σ n_N e_N,    P = Σ n_Z e_Z over elements Z of A,    N the elements that only B has

with a = 1, whatever the e_N are. Adsorption and formation energies do not grow with the slab: a is near 0. Where B does
not tell a from e_N (one size of slab), e_N must at least not be far above zero: no atom costs that much.

Not seen: two functionals with the same pseudopotentials, unless they meet at equal composition. Their references differ
by less than an atom's energy differs between a crystal and a molecule.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from faenet_calc.data.inspection import Facts
from faenet_calc.data.statistics import fit
from faenet_calc.elements import symbol

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_FEWEST = 6  # structures on either side
_SMALLEST = 4  # atoms: atoms and small molecules are bound far less than the crystals that references come from
_SHARED = 0.5  # share of a structure's atoms that the other side must know
_FAR = 0.7  # of the energy that the other side predicts must be missing
_EFFECT = 1.0  # eV per atom: what this amounts to; surfaces and heat are below
_BETTER = 3.0  # times smaller residuals with a free than with a = 1
_COSTLY = 10.0  # eV: no element is that far above its free atom
_OTHER_CODE = 10.0  # eV per atom, more than any cohesive energy


@dataclass(frozen=True, kw_only=True, eq=False)
class Break:
    """A change of the meaning of the energy between two parts of a data set.

    Attributes:
        facts: The structures of the smaller part.
        where: What they have in common.
        words: Description of the measured difference.
        unexplained: (eV per atom) residuals when the change is taken as it was measured.
    """

    facts: list[Facts]
    where: str
    words: str
    unexplained: float


@dataclass(frozen=True, kw_only=True)
class _Contrast:
    """Comparison of two parts: description, unexplained residual (eV per atom), and the element that is responsible."""

    words: str
    unexplained: float
    cost_of: str = ""


def find_break(known: Sequence[Facts]) -> Break | None:
    """Find the change of meaning with the smallest residual, at the presence of an element or at a file."""
    usable = [fact for fact in known if fact.n_atoms >= _SMALLEST]
    if len(usable) < 2 * _FEWEST:
        return None
    compositions = np.array([fact.composition for fact in usable])
    energies = np.array([fact.energy for fact in usable])
    found = []
    for where, inside in _divisions(usable, compositions):
        for judged in (inside, ~inside):
            said = _compare(compositions, energies, judged)
            if said is not None and (not said.cost_of or where == f"with {said.cost_of}"):
                fewer = inside if inside.sum() * 2 <= len(inside) else ~inside
                members = [fact for fact, mine in zip(usable, fewer, strict=True) if mine]
                words = where if fewer is inside else f"that are not {where}"
                found.append(Break(facts=members, where=words, words=said.words, unexplained=said.unexplained))
    return min(found, key=lambda item: item.unexplained, default=None)


def _divisions(facts: Sequence[Facts], compositions: Integers) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    for number in np.flatnonzero(compositions.sum(axis=0)):
        yield f"with {symbol(int(number))}", compositions[:, number] > 0
    sources = np.array([fact.source for fact in facts])
    for source in sorted(set(sources.tolist())):
        yield f"in {source}", sources == source


def _compare(compositions: Integers, energies: Floats, judged: NDArray[np.bool_]) -> _Contrast | None:
    """Compare the judged structures with the prediction from the others; None if they agree."""
    others = ~judged
    if others.sum() < _FEWEST:
        return None
    fitted = fit(compositions[others], energies[others])
    if fitted.deficient:
        return None
    size = compositions.sum(axis=1)
    shared = compositions[:, fitted.numbers].sum(axis=1) / size
    rows = np.flatnonzero(judged & (shared >= _SHARED))
    if len(rows) < _FEWEST:
        return None
    new = np.setdiff1d(np.flatnonzero(compositions[rows].sum(axis=0)), fitted.numbers)
    per_atom, unknown = energies[rows] / size[rows], compositions[rows][:, new] / size[rows, None]
    predicted = compositions[rows][:, fitted.numbers] @ fitted.energies / size[rows]
    rest, cost = _without(per_atom - predicted, unknown)
    known, _ = _without(predicted, unknown)
    target, _ = _without(per_atom, unknown)
    off, scale = _size(rest), _size(known)
    slope = float(known @ target / (known @ known)) if scale > 0 else 1.0
    unexplained = _size(target - slope * known)
    if abs(1 - slope) >= _FAR and abs(1 - slope) * scale >= _EFFECT and off >= _BETTER * unexplained:
        words = f"they change by {slope:.2g} times what the others say of the same elements, expected 1"
        return _Contrast(words=words, unexplained=unexplained)
    if off > _OTHER_CODE:
        words = f"they are {off:.0f} eV/atom from what the others say of the same elements"
        return _Contrast(words=words, unexplained=unexplained)
    if len(new) == 1 and cost[0] > _COSTLY:
        name = symbol(int(new[0]))
        words = f"compared with the others, an atom of {name} would cost {cost[0]:.0f} eV"
        return _Contrast(words=words, unexplained=off, cost_of=name)
    return None


def _size(values: Floats) -> float:
    return float(np.sqrt((values**2).mean()))


def _without(values: Floats, columns: Floats) -> tuple[Floats, Floats]:
    """Residual of a least-squares fit of values by columns, and its coefficients."""
    if not columns.shape[1]:
        return values, np.empty(0)
    coefficients = np.asarray(np.linalg.lstsq(columns, values, rcond=None)[0], dtype=np.float64)
    return values - columns @ coefficients, coefficients
