"""Pairs are joined with their clean slabs, one constant per adsorbate is removed, sites are ranked."""

import lzma

import ase.io
import dft_adsorption
import numpy as np
import pytest
from ase.build import add_adsorbate, fcc111
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from dft_adsorption import (
    Pair,
    aligned,
    at_dft_geometry,
    choose,
    join,
    parity_plot,
    read_pairs,
    relaxed,
    summarize,
    table,
)

from faenet_calc import FAENetCalculator
from faenet_calc.errors import InputError

GAS = {"O": 3.0, "H": -1.5}


def slab(metal="Cu", adsorbate=None, site="fcc", height=1.2):
    atoms = fcc111(metal, (2, 2, 2), vacuum=7.0)
    fixed = (atoms.get_tags() == 2).tolist()
    if adsorbate:
        add_adsorbate(atoms, adsorbate, height, site)
        fixed.append(False)
    atoms.info.clear()
    atoms.arrays["fixed"] = np.array(fixed, dtype=int)
    atoms.pbc = (True, True, False)
    return atoms


def emt_energy(atoms):
    closed = atoms.copy()
    closed.pbc = True
    closed.calc = EMT()
    return closed.get_potential_energy()


def pairs():
    """Six pairs whose DFT energies are those of EMT plus a constant of the adsorbate."""
    found = []
    for metal in ("Cu", "Pd", "Pt"):
        for adsorbate in ("O", "H"):
            atoms, clean = slab(metal, adsorbate), slab(metal)
            energy = emt_energy(atoms) - emt_energy(clean) + GAS[adsorbate]
            words = {"adsorbate": adsorbate, "surface": "pure metals", "slab": metal, "energy": energy}
            found.append(Pair(atoms=atoms, clean=clean, **words))
    return found


def test_one_constant_per_adsorbate_is_removed_and_nothing_else():
    made = pairs()
    rows = summarize(at_dft_geometry("emt", EMT(), made))
    assert [row["case"] for row in rows] == ["all", "adsorbate=O", "adsorbate=H", "surface=pure metals"]
    assert rows[0]["pairs"] == 6 and rows[0]["mae_eV"] < 1e-4 and rows[0]["rank_correlation"] == pytest.approx(1.0)
    energies = np.array([pair.energy for pair in made])
    shifted = energies + np.where([pair.adsorbate == "O" for pair in made], 5.0, -2.0)
    assert np.subtract(*aligned(made, shifted)) == pytest.approx(np.zeros(6))
    shifted[0] += 0.3  # an error of one surface stays, shared with the constant of the three pairs of O
    assert np.abs(np.subtract(*aligned(made, shifted))) == pytest.approx([0.2, 0, 0.1, 0, 0.1, 0])


def site_pairs():
    words = {"adsorbate": "O", "surface": "Cu-Pd", "atoms": slab("Cu", "O"), "clean": slab()}
    energies = {"a": (0.0, 0.2, 0.5), "b": (0.3, 0.1), "alone": (0.0,)}
    return [Pair(slab=name, energy=energy, **words) for name, values in energies.items() for energy in values]


def test_site_preference_by_hand():
    made = site_pairs()
    found = dft_adsorption.site_preference(made, np.array([1.0, 1.5, 2.0, 0.3, 0.1, 9.0]))
    assert (found.same, found.slabs, found.loss) == (2, 2, 0.0)
    assert found.error == pytest.approx((0.5 * 0.19 / 3) ** 0.5)  # errors 1, 1.3, 1.5 and 0, 0
    found = dft_adsorption.site_preference(made, np.array([1.0, 0.9, 2.0, 0.3, 0.1, 9.0]))
    assert (found.same, found.slabs) == (1, 2) and found.loss == pytest.approx(0.1)


def test_sites_of_the_same_slabs_are_chosen():
    made = site_pairs()
    assert [pair.slab for pair in choose(made, slabs=1, sites=2)] == ["a", "a", "b", "b"]
    assert [pair.slab for pair in choose(made, slabs=1, sites=3)] == ["a", "a", "a"]
    assert [pair.energy for pair in choose(made, slabs=1, sites=1)] == [0.0, 0.3]  # two elements: two slabs


def labelled(atoms, energy, **info):
    atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=np.zeros((len(atoms), 3)))
    atoms.info.update(info)
    return atoms


def write_sets(folder):
    """Both sets as they are published: with slabs that have no partner and structures of other kinds."""
    sets = {
        "alloys-o-oh": [
            labelled(slab(), -5.0, db="agir", slabId="s1", ads="N/A", site="N/A"),
            labelled(slab("Cu", "O"), -9.0, db="agir", slabId="s1", ads="O", site="fcc"),
            labelled(slab("Cu", "O"), -9.5, db="agir", slabId="lost", ads="O", site="fcc"),
            labelled(slab("Cu", "O"), -7.0, db="3x3x5_pt111_fcc_O", slabId=0),
        ],
        "alloys-co-h-no": [
            labelled(slab(), -5.5, db="slabs", slab_idx=0),
            labelled(slab("Cu", "H"), -6.0, db="H", slab_idx=0, site_idx=0),
            labelled(slab(), -4.0, db="single_element_slabs", metal="Cu"),
            labelled(slab("Cu", "H"), -4.25, db="single_element_H", metal="Cu"),
        ],
    }
    for name, structures in sets.items():
        path = folder / name / "visible.extxyz"
        path.parent.mkdir(parents=True)
        ase.io.write(path, structures, format="extxyz")
        path.with_suffix(".extxyz.xz").write_bytes(lzma.compress(path.read_bytes()))


def test_structures_are_joined_with_their_clean_slabs(tmp_path):
    write_sets(tmp_path)
    found = [(pair.adsorbate, pair.surface, pair.slab, pair.energy) for pair in read_pairs(tmp_path)]
    assert found == [
        ("O", "Ag-Ir", "s1", -4.0),
        ("H", "Ag-Au-Cu-Pd-Pt", "0", -0.5),
        ("H", "pure metals", "Cu", -0.25),
    ]
    pair = read_pairs(tmp_path)[0]
    assert pair.atoms.constraints[0].index.tolist() == [0, 1, 2, 3] and pair.atoms.calc is None
    assert join([], dft_adsorption._o_oh_key) == []


def test_a_missing_set_is_named(tmp_path):
    with pytest.raises(InputError, match="alloys-o-oh"):
        read_pairs(tmp_path)


def test_relaxed_energies_are_lower_and_displacements_are_counted():
    calculator = FAENetCalculator("metals-s", device="cpu")
    words = {"adsorbate": "H", "surface": "Cu", "clean": slab(), "energy": 0.0}
    made = [
        Pair(slab="x", atoms=slab("Cu", "H", "fcc", 0.95), **words),
        Pair(slab="x", atoms=slab("Cu", "H", "fcc", 1.9), **words),
    ]
    fixed_geometry, found = at_dft_geometry("s", calculator, made), relaxed("s", calculator, made)
    assert found.counts == {"moved": 1, "failed": 0}
    assert {row["case"]: row["pairs"] for row in summarize(found)} == {
        "all": 2, "not moved": 1, "adsorbate=H": 2, "surface=Cu": 2
    }  # fmt: skip
    assert found.energies[0] == pytest.approx(found.energies[1], abs=0.01)
    assert fixed_geometry.energies[1] > fixed_geometry.energies[0] + 0.2


def test_pairs_of_unknown_elements_are_left_out():
    calculator = FAENetCalculator("copper-s", device="cpu")
    made = [pair for pair in pairs() if pair.slab != "Pt"]
    assert dft_adsorption.trained_pairs(calculator, made) == []  # one pair of each adsorbate: no error after alignment
    copper = [pair for pair in made if pair.slab == "Cu"]
    assert dft_adsorption.trained_pairs(calculator, made + copper) == [copper[0], copper[1], *copper]


def test_table_and_plot(tmp_path):
    outcome = at_dft_geometry("emt", EMT(), pairs())
    assert "| adsorbate=O | emt | DFT | 3 | 0.000 |" in table(summarize(outcome))
    parity_plot([outcome] * 5).savefig(tmp_path / "parity.svg")
    assert (tmp_path / "parity.svg").read_text().count("<!-- emt -->") == 5


def test_the_command_writes_the_rows(tmp_path, monkeypatch, capsys):
    write_sets(tmp_path)
    out = tmp_path / "out"
    command = ["x", "metals-s", "copper-s", "--data", str(tmp_path), "-o", str(out)]
    monkeypatch.setattr("sys.argv", command)
    for _ in range(2):  # a second run replaces the rows
        dft_adsorption.main()
    header, *rows = dft_adsorption.Rows(out / "metals-s-dft_adsorption.jsonl").rows
    assert header["weights"] and header["aligned"] == "one constant per adsorbate"
    assert [row["case"] for row in rows] == ["all", "adsorbate=H", "surface=Ag-Au-Cu-Pd-Pt", "surface=pure metals"]
    assert "| all | metals-s | DFT | 2 |" in capsys.readouterr().out
