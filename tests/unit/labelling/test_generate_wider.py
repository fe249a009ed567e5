"""The label factory: several adsorbates in a cell, atoms below the surface, defects, clusters, disorder, selection."""

import numpy as np
import pytest
from ase.calculators.emt import EMT
from ase.data import covalent_radii
from ase.io import read
from small_recipe import SMALL, recipe

from faenet_calc.errors import InputError
from faenet_calc.labelling import generate, plan
from faenet_calc.labelling.adsorbates import species
from faenet_calc.labelling.sampling import snapshots
from faenet_calc.labelling.structures import (
    Substrate,
    bulk_cell,
    cluster,
    disordered,
    place,
    place_below,
    place_further,
    sites,
    slab,
    with_defect,
)

CU = Substrate(name="Cu", symbols=("Cu",), crystal="fcc", a=3.6)
ALLOY = Substrate(name="CuPd", symbols=("Cu", "Pd"), crystal="fcc", a=3.75, fraction=0.4)
IRON = Substrate(name="Fe", symbols=("Fe",), crystal="bcc", a=2.87)
RU = Substrate(name="Ru", symbols=("Ru",), crystal="hcp", a=2.7, c=4.28)


class UncertainEMT(EMT):
    """EMT that is the less certain, the farther the first two atoms are apart."""

    implemented_properties = (*EMT.implemented_properties, "energy_uncertainty")

    def calculate(self, atoms, properties, changes):
        super().calculate(atoms, properties, changes)
        self.results["energy_uncertainty"] = doubt(atoms)


def doubt(atoms) -> float:
    return float(atoms.get_distance(0, 1, mic=True)) * len(atoms)


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def clearance(atoms, some, others) -> float:
    """Smallest distance of two groups of atoms beyond the sum of covalent radii (Å)."""
    distances = atoms.get_all_distances(mic=True)[np.ix_(some, others)]
    return (distances - covalent_radii[atoms.numbers[some]][:, None] - covalent_radii[atoms.numbers[others]]).min()


def test_names_of_several_adsorbates():
    assert species("2CO+O") == ("CO", "CO", "O")
    assert species("CH3+H_sub") == ("CH3", "H_sub")
    assert species("") == ()
    assert recipe(adsorbates=["12H", "O+O_sub"], mix={"adsorbate_kinds": ["relax"]}).adsorbates == ("12H", "O+O_sub")
    for wrong in ("2XO", "CO_sub", "CO+", "0CO", "2"):
        with pytest.raises(InputError, match="not known"):
            recipe(adsorbates=[wrong], mix={"adsorbate_kinds": ["relax"]})
    with pytest.raises(InputError, match="curve"):
        recipe(adsorbates=["2CO"])


def test_adsorbates_in_one_cell_keep_apart_while_there_is_room():
    bare = slab(CU, "fcc111", (3, 3, 3), 8.0, rng())
    generator = rng()
    first = place(bare, "CO", sites(bare)[0], 0.1, 20.0, generator)
    atoms = place_further(first, "H2O", 0.1, 60.0, generator)
    n = len(bare)
    assert atoms.get_chemical_symbols()[n:] == ["C", "O", "O", "H", "H"]
    assert clearance(atoms, range(n + 2, n + 5), range(n, n + 2)) > 0.7
    # At the same site, without a search, they touch.
    pair = place(first, "CO", sites(bare)[0], -0.2, 0.0, generator)
    assert clearance(pair, [n + 2, n + 3], [n, n + 1]) < 0.1
    settings = recipe(tasks=40, adsorbates=["2CO+O"], mix={"adsorbate_kinds": ["rattle"]})
    task = next(task for task in plan(settings) if task.molecule == "2CO+O")
    assert task.system.endswith("_2CO+O")
    for found in snapshots(task, settings, EMT()):
        assert sorted(found.atoms[found.atoms.get_tags() == 2].get_chemical_symbols()) == ["C", "C", "O", "O", "O"]


@pytest.mark.parametrize("facet", ["fcc111", "fcc100"])
def test_an_atom_below_the_surface_is_between_layers(facet):
    bare = slab(CU, facet, (2, 2, 4), 8.0, rng())
    atoms = place_below(bare, "H", rng())
    layers = np.unique(bare.positions[:, 2].round(3))
    assert layers[1] < atoms.positions[-1, 2] < layers[-1] - 0.5
    assert clearance(atoms, [len(bare)], range(len(bare))) > -0.35
    assert atoms.get_tags()[-1] == 2
    settings = recipe(tasks=40, adsorbates=["O+O_sub"], mix={"adsorbate_kinds": ["rattle"]})
    task = next(task for task in plan(settings) if task.molecule == "O+O_sub")
    start = next(iter(snapshots(task, settings, EMT()))).atoms
    height = start.positions[start.get_tags() == 2, 2] - start.positions[start.get_tags() == 1, 2].max()
    assert height[0] > 0 > height[1]


def test_a_defect_is_a_missing_surface_atom_or_an_adatom():
    bare = slab(ALLOY, "fcc100", (3, 3, 3), 8.0, rng())
    generator, sizes = rng(), set()
    for _ in range(12):
        atoms = with_defect(bare, generator)
        sizes.add(len(atoms) - len(bare))
        surface = (atoms.get_tags() == 1).sum()
        assert surface == (bare.get_tags() == 1).sum() + len(atoms) - len(bare)
        if len(atoms) > len(bare):
            assert clearance(atoms, [len(bare)], range(len(bare))) == pytest.approx(0, abs=1e-6)
            assert atoms.positions[-1, 2] > bare.positions[:, 2].max() + 0.5
    assert sizes == {-1, 1}
    for share, expected in ((0.0, {0}), (1.0, {-1, 1})):
        settings = recipe(tasks=60, sampling={**SMALL["sampling"], "defects": share})
        clean = [task for task in plan(settings) if task.facet and not task.molecule]
        assert {len(next(iter(snapshots(task, settings, EMT()))).atoms) - 12 for task in clean} == expected


@pytest.mark.parametrize("n_atoms", [13, 19, 38, 44, 55])
@pytest.mark.parametrize("substrate", [CU, RU, IRON, ALLOY], ids=lambda substrate: substrate.name)
def test_clusters_are_compact_particles_with_the_bonds_of_the_metal(substrate, n_atoms):
    atoms = cluster(substrate, n_atoms, rng())
    assert len(atoms) == n_atoms
    assert not atoms.pbc.any()
    distances = atoms.get_all_distances()
    bonds = distances[(distances > 0) & (distances < 1.2 * substrate.nearest)]
    assert bonds.mean() == pytest.approx(substrate.nearest, rel=0.06)
    neighbors = ((distances > 0) & (distances < 1.15 * substrate.nearest)).sum(axis=1)
    assert np.array_equal(atoms.get_tags(), (neighbors < 12).astype(int))
    assert neighbors.min() >= 3
    bound = place(atoms, "CO", sites(atoms)[0], 0.0, 0.0, rng())
    assert clearance(bound, [n_atoms, n_atoms + 1], range(n_atoms)) == pytest.approx(0, abs=1e-6)


def test_recipes_with_clusters():
    slabs = [{"crystal": "fcc", "facet": "cluster", "sizes": [[13]]}]
    settings = recipe(tasks=60, slabs=slabs, heldout=[{"substrate": "Pd", "facet": "cluster"}])
    tasks = [task for task in plan(settings) if task.facet]
    assert {task.facet for task in tasks} == {"cluster"}
    assert {task.system for task in tasks} >= {"Cu_cluster_CO", "Pd_cluster_clean"}
    assert {task.split for task in tasks if task.substrate.name == "Pd"} == {"heldout"}
    for task in tasks[:10]:
        found = list(snapshots(task, settings, EMT()))
        assert found
        assert all(not one.atoms.pbc.any() for one in found)
    with pytest.raises(InputError, match="n_atoms"):
        recipe(slabs=[{"crystal": "fcc", "facet": "cluster", "sizes": [[14]]}])


def test_held_out_adsorbates_are_held_out_among_others_too():
    mix = {"adsorbate_kinds": ["relax"], "bulk": 0, "clean": 0, "gas": 0}
    settings = recipe(tasks=80, adsorbates=["CO+O", "2O"], mix=mix)
    split = {(task.substrate.name, task.molecule): task.split for task in plan(settings)}
    assert split["Pd", "CO+O"] == "heldout"
    assert split["Pd", "2O"] == split["Cu", "CO+O"] == "train"


@pytest.mark.parametrize("substrate", [CU, RU, IRON], ids=lambda substrate: substrate.name)
def test_descriptions_of_a_crystal_are_the_same_crystal(substrate):
    cells = {kind: bulk_cell(substrate, rng(), kind) for kind in ("conventional", "primitive", "supercell")}
    assert len(cells["primitive"]) < len(cells["conventional"]) < len(cells["supercell"])
    volumes = [atoms.get_volume() / len(atoms) for atoms in cells.values()]
    assert volumes == pytest.approx([volumes[0]] * 3)
    if substrate is CU:
        energies = [EMT().get_property("energy", atoms) / len(atoms) for atoms in cells.values()]
        assert energies == pytest.approx([energies[0]] * 3, abs=1e-6)
        wrong = cells["supercell"].copy()
        wrong.positions[0] += 0.3
        assert abs(EMT().get_property("energy", wrong) / len(wrong) - energies[0]) > 1e-4


def test_disorder_keeps_atoms_apart_and_no_order():
    crystal = bulk_cell(CU, rng(), "supercell")
    atoms = disordered(crystal, 2.1, rng())
    assert atoms.cell == pytest.approx(crystal.cell)
    distances = atoms.get_all_distances(mic=True)
    assert distances[distances > 0].min() > 0.84 * 2.1
    nearest = np.sort(np.where(distances > 0, distances, np.inf), axis=1)[:, 0]
    assert nearest.std() > 0.02
    random = crystal.copy()
    random.set_scaled_positions(rng().random((len(crystal), 3)))
    distances = random.get_all_distances(mic=True)
    assert distances[distances > 0].min() < 1.5
    settings = recipe(tasks=80, mix={"bulk_kinds": ["bulk-disorder"]})
    bulk = [task for task in plan(settings) if task.substrate is not None and not task.facet]
    assert bulk
    assert {found.how for task in bulk for found in snapshots(task, settings, EMT())} == {"disorder"}


def test_the_explorer_selects_what_it_knows_least(tmp_path):
    explorer = {"factory": f"{__name__}.UncertainEMT", "id": "doubtful"}
    mix = {"adsorbate_kinds": ["rattle"], "bulk": 0, "clean": 0, "gas": 0}
    settings = recipe(explorer=explorer, mix=mix, selection={"share": 0.5})
    everything = recipe(explorer=explorer, mix=mix)
    few, all_of_them = (
        read(generate(one, tmp_path / name, trust_code=True).file, ":")
        for name, one in (("few", settings), ("all", everything))
    )
    assert len(few) == len(all_of_them) // 2
    for task in {atoms.info["task"] for atoms in all_of_them}:
        doubts = sorted(doubt(atoms) for atoms in all_of_them if atoms.info["task"] == task)
        kept = sorted(doubt(atoms) for atoms in few if atoms.info["task"] == task)
        assert kept == pytest.approx(doubts[-len(kept) :], abs=1e-5)
        assert len(kept) == len(doubts) // 2
    limit = float(np.median([doubt(atoms) / len(atoms) for atoms in all_of_them]))
    above = recipe(explorer=explorer, mix=mix, selection={"above": limit})
    kept = read(generate(above, tmp_path / "above", trust_code=True).file, ":")
    assert all(doubt(atoms) / len(atoms) > limit - 1e-6 for atoms in kept)
    assert 0 < len(kept) < len(all_of_them)


def test_selection_needs_an_explorer_that_is_uncertain(tmp_path):
    with pytest.raises(InputError, match="needs an explorer"):
        recipe(selection={"share": 0.5})
    with pytest.raises(InputError, match="share"):
        recipe(explorer={"factory": "ase.calculators.emt.EMT"}, selection={"share": 0.0})
    certain = recipe(explorer={"factory": "ase.calculators.emt.EMT"}, selection={"share": 0.5}, tasks=2)
    assert generate(certain, tmp_path).failed == 2


def test_new_settings_belong_to_the_recipe_only_where_they_are_used():
    sampling = SMALL["sampling"]
    assert recipe(sampling={**sampling, "defects": 0.0, "scale": [0.95, 1.07]}).digest() == recipe().digest()
    assert recipe(sampling={**sampling, "defects": 0.5}).digest() != recipe().digest()
    assert recipe(sampling={**sampling, "scale": [0.9, 1.07]}).digest() != recipe().digest()
