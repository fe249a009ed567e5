"""Label factory: one potential may explore while another labels, and held-out systems may be left out."""

from dataclasses import replace

import numpy as np
import pytest
from ase import Atoms
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.io import read
from small_recipe import recipe

from faenet_calc.errors import InputError
from faenet_calc.labelling import generate, plan


class CountingEMT(EMT):
    """EMT that counts its calls."""

    calls = 0

    def calculate(self, *args):
        type(self).calls += 1
        super().calculate(*args)


def softened(**kwargs):
    """A calculator that is wrong: Lennard-Jones atoms."""
    return LennardJones(sigma=2.3, epsilon=0.2, rc=6.0, **kwargs)


def test_an_explorer_moves_the_atoms_and_the_calculator_labels(tmp_path):
    """Positions follow the explorer's forces, values are the calculator's, called once for every structure kept."""
    wanted = {"relax_steps": 12, "md_steps": 12, "md_stride": 4, "rattled": 1, "curve_points": 2}
    factory = f"{__name__}.CountingEMT"
    settings = recipe(
        calculator={"factory": factory}, explorer={"factory": f"{__name__}.softened", "id": "lj"}, sampling=wanted
    )
    CountingEMT.calls = 0
    done = generate(settings, tmp_path / "explored", trust_code=True)
    labels = read(done.file, ":")
    assert done.failed == 0
    assert done.labels <= CountingEMT.calls <= done.labels + done.duplicates + done.dropped
    for atoms in labels:
        assert atoms.info["explorer"] == "lj"
        own = EMT().get_property("energy", Atoms(atoms))
        assert atoms.get_potential_energy() == pytest.approx(own, abs=1e-6)
    CountingEMT.calls = 0
    alone = generate(replace(settings, explorer=None), tmp_path / "alone", trust_code=True)
    assert CountingEMT.calls > alone.labels + alone.duplicates + alone.dropped
    trajectories = [[a for a in read(run.file, ":") if a.info["how"] == "relax"][-1] for run in (done, alone)]
    assert not np.allclose(*(atoms.positions for atoms in trajectories), atol=0.05)


def relaxation_ends(folder, **settings):
    """The last snapshot of every relaxation, by what moved it: {how: {task: atoms}}."""
    found: dict[str, dict[int, Atoms]] = {"relax": {}, "finish": {}}
    for atoms in read(generate(recipe(tasks=30, **settings), folder, trust_code=True).file, ":"):
        if atoms.info["how"] in found and atoms.info["kind"] in ("relax", "slab-relax", "gas-relax"):
            found[atoms.info["how"]][atoms.info["task"]] = atoms
    return found


def test_the_calculator_finishes_what_the_explorer_ended(tmp_path):
    """Relaxations go on to a minimum of the labelling calculator, from where the explorer left them."""
    sampling = {"relax_steps": 12, "relax_fmax": 0.03, "md_steps": 4, "md_stride": 4, "rattled": 1, "curve_points": 2}
    longer = {**sampling, "finish_steps": 200}
    explorer = {"factory": f"{__name__}.softened", "id": "lj"}
    left = relaxation_ends(tmp_path / "left", explorer=explorer, sampling=sampling)
    finished = relaxation_ends(tmp_path / "finished", explorer=explorer, sampling=longer)
    assert not left["finish"]
    both = set(left["relax"]) & set(finished["finish"])  # labels with large forces are dropped
    assert len(both) >= 4
    for task in both:
        before, atoms = left["relax"][task], finished["finish"][task]
        assert np.allclose(finished["relax"][task].positions, before.positions)
        assert atoms.get_potential_energy() < before.get_potential_energy()
        forces, forces_before = (np.abs(a.get_forces(apply_constraint=False)) for a in (atoms, before))
        assert np.median(forces) < 0.03 < forces_before.max()  # the lower half may be fixed


def test_later_settings_keep_digests():
    """Settings that came later do not change the digest as long as they are not used."""
    assert recipe().digest() == "1f3f6a53d2e8"
    assert recipe(with_heldout=False).digest() != recipe().digest()
    explored = recipe(explorer={"factory": "ase.calculators.emt.EMT"}, sampling={})
    assert explored.digest() != recipe(sampling={}).digest()
    assert replace(explored, sampling=replace(explored.sampling, finish_steps=9)).digest() != explored.digest()


def test_finishing_needs_an_explorer_and_a_number():
    with pytest.raises(InputError, match=r"finish_steps = 9 without an explorer.* remove finish_steps"):
        recipe(sampling={"finish_steps": 9})
    with pytest.raises(InputError, match=r"finish_steps = -1, expected a number of steps"):
        recipe(explorer={"factory": "ase.calculators.emt.EMT"}, sampling={"finish_steps": -1})


def test_held_out_systems_can_be_left_out(tmp_path):
    settings = recipe(tasks=30)
    assert any(task.split == "heldout" for task in plan(settings))
    done = generate(replace(settings, with_heldout=False), tmp_path / "labels")
    assert {atoms.info["split"] for atoms in read(done.file, ":")} == {"train"}
    assert done.tasks == sum(task.split == "train" for task in plan(settings))
