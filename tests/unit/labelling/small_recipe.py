"""A recipe of twelve quick tasks, labelled by EMT."""

from faenet_calc.labelling import Recipe
from faenet_calc.settings import from_mapping

SMALL = {
    "name": "small",
    "tasks": 12,
    "calculator": {"factory": "ase.calculators.emt.EMT"},
    "metals": [{"symbol": "Cu", "crystal": "fcc", "a": 3.59}, {"symbol": "Pd", "crystal": "fcc", "a": 3.88}],
    "alloys": [{"metals": ["Cu", "Pd"], "fractions": [0.5]}],
    "slabs": [{"crystal": "fcc", "facet": "111", "sizes": [[2, 2, 3]]}],
    "adsorbates": ["O", "CO"],
    "gas": ["CO", "H2O"],
    "sampling": {"relax_steps": 4, "md_steps": 4, "md_stride": 2, "rattled": 2, "curve_points": 3},
    "heldout": [{"substrate": "Pd", "adsorbate": "CO"}, {"substrate": "CuPd"}],
}


def recipe(**changes) -> Recipe:
    """The recipe with some settings replaced."""
    return from_mapping(Recipe, {**SMALL, **changes})
