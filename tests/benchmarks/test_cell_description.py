"""The table of cell descriptions: structures are what they claim to be, and the command runs on a small model."""

import json

import numpy as np
import pytest
from ase.build import bulk
from cell_description import bulk_descriptions, main, slab_descriptions, slab_with_oxygen, table

from faenet_calc.graphs.neighbors import neighbor_list


def distances(atoms):
    """Sorted distances per atom within 6 Å: the same for every description of a structure."""
    edges = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, 6.0)
    return np.sort(edges.distance), len(edges) / len(atoms)


def test_descriptions_are_of_the_same_structure():
    slab = slab_with_oxygen("Cu")
    pairs = [(slab, other) for other in slab_descriptions(slab).values()]
    for first, second in [*pairs, *bulk_descriptions("Cu").values()]:
        (found, per_atom), (other, other_per_atom) = distances(first), distances(second)
        assert per_atom == pytest.approx(other_per_atom)
        repeats = len(second) / len(first)
        assert np.histogram(other, bins=40, range=(1.0, 6.0))[0] == pytest.approx(
            repeats * np.histogram(found, bins=40, range=(1.0, 6.0))[0], abs=2
        )
        assert not np.allclose(first.cell.array, second.cell.array)
    changed = bulk("Cu", a=3.7)
    assert distances(changed)[1] != pytest.approx(distances(bulk("Cu", a=3.2))[1])


def test_the_command(monkeypatch, capsys, repository):
    model = str(repository / "tests" / "data" / "emt-copper.safetensors")
    monkeypatch.setattr("sys.argv", ["x", model, "--frames", "all", "one", "--metals", "Cu", "--json"])
    main()
    rows = {row["case"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    bulk_row = rows["bulk, primitive and cubic"]
    assert bulk_row["unit"] == "meV/atom" and bulk_row["all"] >= 0
    assert {"Cu, c/a - 1", "bulk, a and c swapped"} <= rows.keys()
    assert "| bulk, primitive and cubic | meV/atom |" in table(list(rows.values()), ["all", "one"])
