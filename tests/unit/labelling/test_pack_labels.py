"""Packed labels are the labels, rounded."""

import sys

import numpy as np
import pack_labels
from ase import Atoms
from ase.io import read, write
from ruamel.yaml import YAML
from small_set import write_small_set

from faenet_calc.files import sha256_of


def test_a_packed_file_has_the_same_labels(tmp_path, monkeypatch, capsys):
    first, second = (write_small_set(tmp_path / f"{seed}.extxyz", n=3, seed=seed) for seed in (0, 1))
    structures = [*read(first, ":"), *read(second, ":")]
    structures[0].info["system"] = "Cu_fcc111_O"
    write(first, structures[:3])
    packed = tmp_path / "deep" / "packed.extxyz.xz"
    monkeypatch.setattr(sys, "argv", ["pack_labels.py", str(first), str(second), "-o", str(packed)])
    pack_labels.main()
    (entry,) = YAML(typ="safe").load(capsys.readouterr().out)
    assert entry == {"file": "packed.extxyz.xz", "sha256": sha256_of(packed), "structures": 6}
    found = read(packed, ":")
    assert len(found) == 6 and found[0].info["system"] == "Cu_fcc111_O"
    for old, new in zip(structures, found, strict=True):
        assert np.array_equal(old.numbers, new.numbers) and np.array_equal(old.get_tags(), new.get_tags())
        assert 0 < np.abs(old.positions - new.positions).max() < 1e-5
        assert abs(old.get_potential_energy() - new.get_potential_energy()) < 1e-5
        errors = np.abs(old.get_forces(apply_constraint=False) - new.get_forces(apply_constraint=False))
        assert 0 < errors.max() < 1e-4


def test_parts_are_disjoint_sets_of_systems(tmp_path, monkeypatch, capsys):
    file = write_small_set(tmp_path / "labels.extxyz", n=60)
    structures = read(file, ":")
    for number, atoms in enumerate(structures):
        atoms.info.update(system=f"system_{number // 2}", split="heldout" if number < 6 else "train")
    write(file, structures)
    systems = {}
    for part in ("train", "val", "test"):
        packed = tmp_path / f"{part}.extxyz.xz"
        monkeypatch.setattr(pack_labels, "VALIDATION", 0.2)
        monkeypatch.setattr(sys, "argv", ["pack_labels.py", str(file), "--part", part, "-o", str(packed)])
        pack_labels.main()
        systems[part] = [atoms.info["system"] for atoms in read(packed, ":")]
    capsys.readouterr()
    assert systems["test"] == [f"system_{number // 2}" for number in range(6)]
    assert 2 <= len(set(systems["val"])) <= 12
    assert sum(map(len, systems.values())) == 60
    assert not set(systems["train"]) & set(systems["val"])
    monkeypatch.setattr(pack_labels, "VALIDATION", 0.0)
    names = [Atoms(info={"system": name, "split": "train"}) for name in systems["val"]]
    assert {pack_labels.part_of(atoms) for atoms in names} == {"train"}
