"""`data check` finds each planted fault, and finds nothing in clean data."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from ase.io import write

from faenet_calc.data.check import check_files
from faenet_calc.data.energy_meaning import find_break
from faenet_calc.data.inspection import Facts


def _labelled(atoms, **changes):
    """A copy with raw EMT labels, or other ones where given."""
    source = atoms.copy()
    source.calc = EMT()
    results = {
        "energy": source.get_potential_energy(),
        "forces": source.get_forces(apply_constraint=False),
        **changes,
    }
    copy = atoms.copy()
    copy.info = {}  # ASE's slab builder leaves a note there that files cannot hold
    copy.calc = SinglePointCalculator(copy, **{name: value for name, value in results.items() if value is not None})
    return copy


def _clean():
    """Rattled Cu slabs with and without adatoms, and cells of Cu, Pd and Ag: several compositions, nothing wrong."""
    random = np.random.default_rng(1)
    structures = []
    for number in range(12):
        slab = fcc111("Cu", (2, 2, 3), vacuum=6, periodic=True)
        if number % 2:
            add_adsorbate(slab, "Pd" if number % 4 == 1 else "Ag", 2.2, "fcc")
        mixed = bulk("Cu", cubic=True) * (1, 1, 2)
        mixed.symbols[: number % 3 + 1] = "Pd"
        mixed.symbols[4 : 4 + number % 2] = "Ag"
        structures += [slab, mixed, bulk(("Cu", "Pd", "Ag")[number % 3], cubic=True)]
    structures = [_moved(atoms, random) for atoms in structures]
    return [_labelled(atoms) for atoms in structures + [_moved(atoms, random) for atoms in structures]]


def _moved(atoms, random, size=0.05):
    copy = atoms.copy()
    copy.positions += random.normal(0, size, (len(atoms), 3))
    return copy


@pytest.fixture(scope="module")
def clean():
    return _clean()


def _copies(structures):
    copies = []
    for atoms in structures:
        copy = atoms.copy()
        copy.calc = SinglePointCalculator(copy, **atoms.calc.results)
        copies.append(copy)
    return copies


def _relabel(atoms, **changes):
    results = {**atoms.calc.results, **changes}
    atoms.calc = SinglePointCalculator(atoms, **{k: v for k, v in results.items() if v is not None})


def energy_under_another_name(data):
    for atoms in data:
        atoms.info["REF_energy"] = atoms.calc.results["energy"]
        _relabel(atoms, energy=None)


def forces_under_another_name(data):
    for atoms in data:
        atoms.arrays["dft_forces"] = atoms.calc.results["forces"]
        _relabel(atoms, forces=None)


def virial_instead_of_stress(data):
    for atoms in data:
        atoms.info["virial"] = np.eye(3)


def second_energy(data):
    for atoms in data:
        atoms.info["dft_energy"] = 1.5


def free_energy_differs(data):
    _relabel(data[0], free_energy=data[0].calc.results["energy"] + 1.0)


def zeroed_without_mark(data):
    for atoms in data[:10]:
        forces = atoms.calc.results["forces"].copy()
        forces[: len(forces) // 2] = 0
        _relabel(atoms, forces=forces)


def zeroed_fixed_atoms(data):
    for atoms in data[:10]:
        forces = atoms.calc.results["forces"].copy()
        forces[:3] = 0
        _relabel(atoms, forces=forces)
        atoms.set_constraint(FixAtoms(indices=[0, 1, 2]))


def copied_structure(data):
    data += _copies(data[3:5])


def contradicting_copy(data):
    data += _copies(data[3:4])
    _relabel(data[-1], energy=data[-1].calc.results["energy"] + 0.5)


def nan_energy(data):
    _relabel(data[2], energy=np.nan)


def nan_forces(data):
    forces = data[2].calc.results["forces"].copy()
    forces[1, 1] = np.inf
    _relabel(data[2], forces=forces)


def nan_positions(data):
    data[4].positions[0, 0] = np.nan


def flat_cell(data):
    data[4].cell[2] = data[4].cell[1]


def energy_outlier(data):
    _relabel(data[7], energy=data[7].calc.results["energy"] + 50)


def force_outlier(data):
    forces = data[7].calc.results["forces"].copy()
    forces[0] += 200
    forces[1] -= 200
    _relabel(data[7], forces=forces)


def adsorption_and_total(data):
    for atoms in data[::5]:
        _relabel(atoms, energy=atoms.calc.results["energy"] - 5.0 * len(atoms))


def same_composition_two_codes(data):
    del data[:]
    data += _rattled(bulk("Cu", cubic=True), 30)
    for atoms in data[:9]:
        _relabel(atoms, energy=atoms.calc.results["energy"] - 1000.0)


TOTAL = {"Cu": -3.7, "Pd": -5.2, "Ag": -2.7}  # eV per atom of the crystals; EMT's energies are relative to them


def total_energies(data):
    """Energies as a plane-wave code gives them."""
    for atoms in data:
        _relabel(atoms, energy=atoms.calc.results["energy"] + sum(TOTAL[name] for name in atoms.symbols))


def formation_energies_with_silver(data):
    formation = {id(atoms): atoms.calc.results["energy"] for atoms in data if "Ag" in atoms.symbols}
    total_energies(data)
    for atoms in data:
        if id(atoms) in formation:
            _relabel(atoms, energy=formation[id(atoms)])


def total_energies_with_silver(data):
    """As above, but most structures hold formation energies."""
    for atoms in data:
        if "Ag" in atoms.symbols:
            total_energies([atoms])


def adsorption_energies_on_one_slab(data):
    """Every slab has 12 Cu, so that the reference of Pd can hide the change."""
    slab = fcc111("Cu", (2, 2, 3), vacuum=6, periodic=True)
    data[:] = _rattled(slab, 20)
    total_energies(data)
    add_adsorbate(slab, "Pd", 2.2, "fcc")
    data += _rattled(slab, 20)


def one_composition(data):
    cell = bulk("Cu", cubic=True)
    cell.symbols[0] = "Pd"
    data[:] = _rattled(cell, 20)


def rare_element(data):
    cell = bulk("Cu", cubic=True)
    cell.symbols[0] = "Ni"
    data += _rattled(cell, 2)


def far_atom(data):
    atoms = bulk("Cu", cubic=True) * (2, 2, 1)
    atoms.cell[2, 2] = 40
    atoms += Atoms("Cu", [[0, 0, 22]])
    data.append(_labelled(atoms))


def overlap(data):
    atoms = data[0].copy()
    atoms.positions[1] = atoms.positions[0] + [0, 0, 0.2]
    data.append(_labelled(atoms, energy=data[0].calc.results["energy"], forces=np.zeros((len(atoms), 3))))


def no_periodicity(data):
    data[0].pbc = False


def lost_cell(data):
    data[0].pbc = False
    data[0].cell[:] = 0


def drifting_forces(data):
    for atoms in data[:3]:
        _relabel(atoms, forces=atoms.calc.results["forces"] + [0, 0, 0.3])


def wrong_sign(data):
    for atoms in data[:30]:
        _relabel(atoms, forces=-atoms.calc.results["forces"])
    _interleave(data)


def hartree_per_bohr(data):
    for atoms in data:
        _relabel(atoms, forces=atoms.calc.results["forces"] / 51.42)
    _interleave(data)


def flipped_forces(data):
    for atoms in data:
        _relabel(atoms, forces=-atoms.calc.results["forces"])


def permuted_forces(data):
    random = np.random.default_rng(3)
    for atoms in data:
        _relabel(atoms, forces=random.permutation(atoms.calc.results["forces"]))


def permuted_forces_of_molecules(data):
    data[:] = _rattled(Atoms("Cu4", [[0, 0, 0], [2.4, 0, 0], [0, 2.4, 0], [0, 0, 2.4]]), 10, 0.4)
    permuted_forces(data)


def zero_forces(data):
    for atoms in data:
        _relabel(atoms, forces=np.zeros((len(atoms), 3)))


def constant_energies(data):
    for atoms in data:
        _relabel(atoms, energy=-3.0)


def half_in_hartree(data):
    total_energies(data)
    for atoms in data[::2]:
        _relabel(atoms, energy=atoms.calc.results["energy"] / 27.2114)


def half_of_small_energies_in_hartree(data):
    """EMT's own energies: a slab has 0.2 eV/atom, so that no gap shows."""
    data[:] = _rattled(fcc111("Cu", (2, 2, 5), vacuum=6, periodic=True), 24)
    for atoms in data[::2]:
        _relabel(atoms, energy=atoms.calc.results["energy"] / 27.2114)


def lengths_in_bohr(data):
    for atoms in data:
        atoms.set_cell(atoms.cell / 0.529177, scale_atoms=True)
        _relabel(atoms)


def partly_unlabelled(data):
    for atoms in data[:5]:
        atoms.calc = None


def no_labels(data):
    for atoms in data:
        atoms.calc = None


def _interleave(data):
    """Each structure followed by its moved copy, as in a trajectory."""
    half = len(data) // 2
    data[:] = [atoms for pair in zip(data[:half], data[half:], strict=True) for atoms in pair]
    signs = {atoms.calc.results["forces"][0, 0] for atoms in data}
    assert len(signs) == len(data)
    for first, second in zip(data[::2], data[1::2], strict=True):
        factor = np.abs(first.calc.results["forces"]).max() / np.abs(_labelled(first).calc.results["forces"]).max()
        sign = np.sign((first.calc.results["forces"] * _labelled(first).calc.results["forces"]).sum())
        _relabel(second, forces=sign * factor * _labelled(second).calc.results["forces"])


def _rattled(atoms, count, size=0.05):
    random = np.random.default_rng(5)
    return [_labelled(_moved(atoms, random, size)) for _ in range(count)]


FAULTS = [
    (energy_under_another_name, "unread-labels", "error"),
    (forces_under_another_name, "unread-labels", "error"),
    (virial_instead_of_stress, "unread-labels", "warning"),
    (second_energy, "other-energies", "note"),
    (free_energy_differs, "free-energy", "note"),
    (zeroed_without_mark, "zeroed-forces", "error"),
    (zeroed_fixed_atoms, "zeroed-forces-fixed", "warning"),
    (copied_structure, "duplicates", "warning"),
    (contradicting_copy, "contradictions", "error"),
    (nan_energy, "nan-labels", "error"),
    (nan_forces, "nan-labels", "error"),
    (nan_positions, "unusable", "error"),
    (flat_cell, "unusable", "error"),
    (energy_outlier, "energy-outliers", "warning"),
    (force_outlier, "force-outliers", "warning"),
    (adsorption_and_total, "mixed-energies", "error"),
    (same_composition_two_codes, "mixed-energies", "error"),
    (formation_energies_with_silver, "mixed-energies", "error"),
    (total_energies_with_silver, "mixed-energies", "error"),
    (adsorption_energies_on_one_slab, "mixed-energies", "error"),
    (one_composition, "rank-deficient", "warning"),
    (rare_element, "few-samples", "warning"),
    (far_atom, "isolated-atoms", "warning"),
    (overlap, "overlapping-atoms", "error"),
    (no_periodicity, "cell-without-pbc", "warning"),
    (lost_cell, "missing-cell", "warning"),
    (drifting_forces, "net-force", "warning"),
    (wrong_sign, "forces-not-slope", "error"),
    (hartree_per_bohr, "forces-not-slope", "error"),
    (flipped_forces, "forces-not-slope", "error"),
    (permuted_forces, "forces-not-slope", "error"),
    (permuted_forces_of_molecules, "net-torque", "error"),
    (zero_forces, "zero-forces", "error"),
    (constant_energies, "constant-energies", "error"),
    (half_in_hartree, "mixed-units", "error"),
    (half_of_small_energies_in_hartree, "mixed-units", "error"),
    (lengths_in_bohr, "long-bonds", "warning"),
    (partly_unlabelled, "missing-energy", "warning"),
    (no_labels, "missing-energy", "error"),
]


@pytest.mark.parametrize(("plant", "code", "severity"), FAULTS, ids=[plant.__name__ for plant, _, _ in FAULTS])
def test_finds_each_planted_fault(clean, tmp_path, plant, code, severity):
    data = _copies(clean)
    plant(data)
    write(tmp_path / "data.extxyz", data)
    report = check_files(tmp_path / "data.extxyz")
    found = {finding.code: finding for finding in report.findings}
    assert code in found, list(found)
    assert found[code].severity == severity
    assert found[code].advice
    if code == "missing-energy":
        assert ("label them" in found[code].advice) == (plant is no_labels)
    assert report.ok == ("error" not in {finding.severity for finding in report.findings})


def test_clean_data_passes_without_a_word(clean, tmp_path):
    write(tmp_path / "data.extxyz", clean)
    report = check_files(tmp_path / "data.extxyz")
    assert report.findings == ()
    assert report.ok
    assert report.n_structures == report.n_energies == report.n_forces == len(clean)


def test_total_energies_pass_without_a_word(clean, tmp_path):
    """The control of the faults above: the same structures, one meaning."""
    data = _copies(clean)
    total_energies(data)
    write(tmp_path / "data.extxyz", data)
    assert check_files(tmp_path / "data.extxyz").findings == ()


def test_a_file_of_another_code_is_noticed(clean, tmp_path):
    data = _copies(clean)
    total_energies(data)
    first, second = data[::2], data[1::2]
    write(tmp_path / "a.extxyz", first)
    write(tmp_path / "b.extxyz", second)
    assert check_files(tmp_path).findings == ()
    for atoms in second:  # other pseudopotentials: other zeros of energy
        shift = sum({"Cu": -1350.0, "Pd": -800.0, "Ag": -1000.0}[name] for name in atoms.symbols)
        _relabel(atoms, energy=atoms.calc.results["energy"] + shift)
    write(tmp_path / "b.extxyz", second)
    (finding,) = [f for f in check_files(tmp_path).findings if f.code == "mixed-energies"]
    assert finding.severity == "error"


def test_symmetric_structures_may_have_zero_forces(tmp_path):
    structures = [bulk("Cu", cubic=True, a=length) for length in (3.5, 3.6, 3.7)]
    write(tmp_path / "data.extxyz", [_labelled(atoms, forces=np.zeros((4, 3))) for atoms in structures])
    assert "zero-forces" not in {finding.code for finding in check_files(tmp_path / "data.extxyz").findings}


def test_right_molecules_have_no_torque(tmp_path):
    data = []
    permuted_forces_of_molecules(data)
    write(tmp_path / "data.extxyz", [_labelled(atoms) for atoms in data])
    assert "net-torque" not in {finding.code for finding in check_files(tmp_path / "data.extxyz").findings}


def test_right_forces_along_a_trajectory_pass(clean, tmp_path):
    data = _copies(clean)
    _interleave(data)
    write(tmp_path / "data.extxyz", data)
    assert check_files(tmp_path / "data.extxyz").findings == ()


def test_the_right_keys_silence_the_finding(clean, tmp_path):
    data = _copies(clean)
    energy_under_another_name(data)
    write(tmp_path / "data.extxyz", data)
    assert check_files(tmp_path / "data.extxyz", energy_key="REF_energy").findings == ()


def test_an_empty_file_is_an_error(tmp_path):
    (tmp_path / "empty.extxyz").write_text("")
    assert [finding.code for finding in check_files(tmp_path / "empty.extxyz").findings] == ["empty"]


def _facts(structures):
    return [
        Facts(
            name=str(number),
            source="data",
            composition=np.bincount(atoms.numbers, minlength=119),
            energy=atoms.calc.results["energy"],
        )
        for number, atoms in enumerate(structures)
    ]


def test_the_element_that_changes_the_meaning_is_named(clean):
    data = _copies(clean)
    formation_energies_with_silver(data)
    found = find_break(_facts(data))
    assert found.where == "with Ag"
    assert len(found.facts) == sum("Ag" in atoms.symbols for atoms in data)
    right = _copies(clean)
    assert find_break(_facts(right)) is None
    total_energies(right)
    assert find_break(_facts(right)) is None


def test_an_element_that_hides_the_change_in_its_reference_is_named(clean):
    data = _copies(clean)
    adsorption_energies_on_one_slab(data)
    found = find_break(_facts(data))
    assert found.where == "with Pd"
    assert "an atom of Pd would cost" in found.words


def test_real_data_has_no_errors(data_dir):
    report = check_files(data_dir / "mlearn")
    assert report.n_structures == 102
    assert report.count("error") == 0
