"""Packed labels are the labels, rounded."""

import sys

import numpy as np
import pack_labels
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
