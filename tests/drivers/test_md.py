"""run_md(): ensembles, the start, the drift, and when it stops."""

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.calculators.calculator import all_changes
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms, FixBondLengths
from ase.io import read
from pymatgen.io.ase import AseAtomsAdaptor

from faenet_calc.errors import InputError
from faenet_calc.simulate import MDStoppedWarning, run_md
from faenet_calc.simulate.ensembles import ENSEMBLES, draw_momenta
from faenet_calc.simulate.md_log import MDLog, fit_drift


def spheres(n: int = 3) -> Atoms:
    return bulk("Cu", cubic=True) * (n, n, n)


class Springs(EMT):
    """Every atom on a spring of its own: exact canonical averages, and quick."""

    def __init__(self, sites) -> None:
        super().__init__()
        self.sites = sites.copy()
        self.stiffness = np.random.default_rng(0).uniform(2.0, 10.0, sites.shape)  # eV/Å²

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super(EMT, self).calculate(atoms, properties, system_changes)
        away = atoms.positions - self.sites
        energy = 0.5 * float((self.stiffness * away**2).sum())
        self.results = {
            "energy": energy,
            "free_energy": energy,
            "forces": -self.stiffness * away,
            "stress": np.zeros(6),
        }


@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_every_ensemble_runs_and_leaves_its_input_alone(crystal, ensemble):
    before = crystal.copy()
    result = run_md(crystal, EMT(), ensemble=ensemble, steps=30)
    assert np.array_equal(crystal.positions, before.positions) and not crystal.has("momenta")
    assert result.n_steps == 30 and result.stopped_because is None and result.wall_s > 0
    assert len(result.times_fs) == len(result.energies) == len(result.temperatures) == 4
    assert result.times_fs[-1] == pytest.approx(30.0)
    assert result.energies[-1] == pytest.approx(result.atoms.get_potential_energy())
    assert result.atoms.has("momenta")
    moved = np.abs(result.atoms.cell.array - before.cell.array).max()
    assert (moved > 0) == ensemble.startswith("npt")


@pytest.mark.parametrize("ensemble", ["nvt-langevin", "nvt-bussi", "nvt-nose-hoover"])
@pytest.mark.parametrize("fixed", [False, True])
def test_thermostats_reach_the_temperature(ensemble, fixed):
    atoms = spheres()
    if fixed:
        atoms.set_constraint(FixAtoms(range(54)))
    result = run_md(
        atoms,
        Springs(atoms.positions),
        ensemble=ensemble,
        temperature_K=500.0,
        timestep_fs=4.0,
        thermostat_fs=40.0,
        steps=1500,
        interval=5,
        check_interval=500,
    )
    assert result.temperatures[100:].mean() == pytest.approx(500.0, rel=0.06)
    n_free = 54 if fixed else 108
    expected = 1.5 * n_free * units.kB * 500.0  # equipartition of the springs
    assert result.energies[100:].mean() == pytest.approx(expected, rel=0.1)
    if ensemble != "nvt-langevin":
        assert abs(result.drift.meV_per_atom_ps) < 0.05


def test_conserved_quantity_of_nose_hoover_with_fixed_atoms_needs_our_correction(slab, monkeypatch):
    from ase.md.nose_hoover_chain import NoseHooverChainNVT

    arguments = {"ensemble": "nvt-nose-hoover", "steps": 100, "seed": 3}
    ours = run_md(slab, EMT(), **arguments).drift
    monkeypatch.setattr(
        "faenet_calc.simulate.nose_hoover.NoseHooverWithFixedAtoms",
        lambda atoms, step, **kwargs: NoseHooverChainNVT(atoms, step, **kwargs),
    )
    theirs = run_md(slab, EMT(), **arguments).drift
    assert abs(ours.meV_per_atom_ps) < 0.5 and ours.std_meV_per_atom < 0.1
    assert theirs.std_meV_per_atom > 10 * ours.std_meV_per_atom


def test_npt_reaches_the_pressure():
    atoms = bulk("Cu", a=3.6, cubic=True)
    result = run_md(
        atoms,
        EMT(),
        ensemble="npt",
        pressure_GPa=10.0,
        temperature_K=100.0,
        steps=400,
        timestep_fs=4.0,
        barostat_fs=200.0,
    )
    assert result.atoms.get_volume() < 0.96 * atoms.get_volume()
    with pytest.raises(InputError, match="does not support constraints"):
        fixed = atoms.copy()
        fixed.set_constraint(FixAtoms([0]))
        run_md(fixed, EMT(), ensemble="npt")
    with pytest.raises(InputError, match="periodic boundaries in three directions"):
        run_md(molecule("CO"), EMT(), ensemble="npt")


def test_seeds_decide(crystal):
    first, same, other = (run_md(crystal, EMT(), steps=5, seed=seed).atoms.positions for seed in (1, 1, 2))
    assert np.allclose(first, same, atol=1e-12) and not np.allclose(first, other, atol=1e-3)


def test_first_momenta_follow_maxwell_and_boltzmann():
    atoms = spheres(5)
    temperatures = []
    for seed in range(20):
        draw_momenta(atoms, 300.0, seed)
        temperatures.append(atoms.get_temperature())
        assert np.abs(atoms.get_momenta().sum(axis=0)).max() < 1e-9
    n = len(atoms)
    assert np.mean(temperatures) == pytest.approx(300.0 * (n - 1) / n, rel=0.02)
    # relative fluctuation √(2 / 3N) of a canonical kinetic energy
    assert np.std(temperatures) / 300.0 == pytest.approx(np.sqrt(2 / (3 * n)), rel=0.5)
    velocities = atoms.get_velocities().ravel()
    assert (velocities**4).mean() / (velocities**2).mean() ** 2 == pytest.approx(3.0, rel=0.2), "not Gaussian"


def test_momenta_of_the_atoms_are_kept(crystal):
    crystal.set_momenta(np.full((4, 3), 0.5) * [[1], [-1], [1], [-1]])
    given = crystal.get_temperature()
    result = run_md(crystal, EMT(), ensemble="nve", steps=0, temperature_K=10.0)
    assert result.temperatures[0] == pytest.approx(given) and given > 20


def test_drift_of_a_known_line():
    log = MDLog(interval=1, check_interval=1)
    wiggle = 0.002 * np.array([1, -1, -1, 1] * 25)
    for n in range(100):
        log.add(step=n, time_fs=10.0 * n, potential=0.0, temperature=0.0, conserved=5 + 0.003 * 0.01 * n + wiggle[n])
    drift = fit_drift(log, n_atoms=2)
    assert drift.meV_per_atom_ps == pytest.approx(1.5, rel=0.05)
    assert drift.std_meV_per_atom == pytest.approx(1.0, rel=0.01)
    assert fit_drift(MDLog(interval=1, check_interval=1), 2) is None


def test_small_steps_conserve_and_large_ones_do_not(crystal):
    drifts = [
        run_md(crystal, EMT(), ensemble="nve", steps=int(400 / dt), timestep_fs=dt, interval=int(20 / dt)).drift
        for dt in (2.0, 20.0)
    ]
    assert drifts[0].std_meV_per_atom < 0.5 < drifts[1].std_meV_per_atom


def test_pymatgen_structures(crystal):
    structure = AseAtomsAdaptor.get_structure(crystal)
    result = run_md(structure, EMT(), ensemble="nve", steps=5)
    expected = run_md(AseAtomsAdaptor.get_atoms(structure), EMT(), ensemble="nve", steps=5)
    assert isinstance(result.atoms, Atoms) and np.allclose(result.atoms.positions, expected.atoms.positions)


def test_a_trajectory_is_kept_until_the_new_run_has_started(crystal, tmp_path):
    path = tmp_path / "run.traj"
    run_md(crystal, EMT(), steps=10, trajectory=path)
    content = path.read_bytes()
    hot = crystal.copy()
    hot.set_momenta(np.full((4, 3), 50.0) * [[1], [-1], [1], [-1]])
    for atoms, arguments in ((hot, {}), (crystal, {"ensemble": "npt", "max_committee_std": 1.0})):
        with pytest.raises(InputError):
            run_md(atoms, EMT(), steps=10, trajectory=path, overwrite=True, **arguments)
        assert path.read_bytes() == content
    run_md(crystal, EMT(), steps=20, trajectory=path, overwrite=True)
    assert len(read(path, ":")) == 3, "the test above can fail"


def test_log(crystal, tmp_path):
    run_md(crystal, EMT(), steps=20, logfile=tmp_path / "md.log")
    lines = (tmp_path / "md.log").read_text().splitlines()
    assert lines[0].split()[0] == "step" and [int(line.split()[0]) for line in lines[1:]] == [0, 10, 20]


class Spread(EMT):
    """EMT with an uncertainty that grows with every calculation."""

    implemented_properties = (*EMT.implemented_properties, "forces_frame_std", "forces_var")

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        self.n_done = getattr(self, "n_done", 0) + 1
        spread = np.zeros(len(atoms))
        spread[2] = 0.01 * self.n_done
        self.results["forces_frame_std"] = spread
        self.results["forces_var"] = np.repeat(spread[:, None] ** 2 / 3, 3, axis=1)


class Poisoned(EMT):
    """EMT that goes wrong after some calculations."""

    def __init__(self, how: str, after: int = 12) -> None:
        super().__init__()
        self.how, self.left = how, after

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        self.left -= 1
        if self.left >= 0:
            return
        if self.how == "nan":
            self.results["forces"] = self.results["forces"] * np.nan
        elif self.how == "kick":
            self.results["forces"] = self.results["forces"] + [[300.0, 0, 0], [-300.0, 0, 0], [0, 0, 0], [0, 0, 0]]
        elif self.how == "pull":
            apart = atoms.get_distance(0, 1, mic=True, vector=True)
            self.results["forces"] = self.results["forces"] + np.outer(
                [40.0, -40.0, 0, 0], apart / np.linalg.norm(apart)
            )
        elif self.how == "hole":
            self.results["energy"] -= 1000.0
        else:
            raise InputError("the model returned NaN for Cu0")


@pytest.mark.parametrize(
    ("calc", "arguments", "words"),
    [
        (Poisoned("nan"), {}, "not finite"),
        (Poisoned("kick"), {}, "temperature exploded"),
        (Poisoned("hole"), {}, r"potential energy exploded: -2\d\d\.\d+ eV/atom"),
        (Poisoned("error"), {}, "calculator failed: the model returned NaN for Cu0"),
        (Poisoned("pull", 5), {"max_temperature_K": 1e9, "max_energy_change": 1e9, "check_interval": 1}, "overlap"),
        (Spread(), {"max_frame_std": 0.2}, r"spread over frames of the force on atom 2 \(Cu\) .* max_frame_std=0.2"),
        (Spread(), {"max_committee_std": 0.2}, "committee spread .* max_committee_std=0.2"),
    ],
)
def test_it_stops_with_a_message_and_a_snapshot(crystal, tmp_path, calc, arguments, words):
    settings = {"check_interval": 5, "ensemble": "nve"} | arguments
    with pytest.warns(MDStoppedWarning, match=rf"(?s)stopped after \d+ steps: .*{words}.*; snapshot in "):
        result = run_md(crystal, calc, steps=200, trajectory=tmp_path / "run.traj", **settings)
    assert 0 < result.n_steps < 200 and result.stopped_because
    assert result.snapshot.name == f"run.stopped-at-{result.n_steps}.extxyz"
    snapshot = read(result.snapshot)
    assert snapshot.info["stopped_because"] == result.stopped_because
    assert np.allclose(snapshot.positions, result.atoms.positions, atol=1e-6, equal_nan=True)
    good = read(tmp_path / "run.traj", ":")
    assert all(np.isfinite(s.positions).all() and np.isfinite(s.get_potential_energy()) for s in good)


def test_the_same_runs_do_not_stop_without_a_reason(crystal):
    assert run_md(crystal, Spread(), ensemble="nve", steps=60, max_frame_std=5.0).stopped_because is None


def test_limits_that_cannot_be_checked_are_refused(crystal):
    with pytest.raises(InputError, match="max_frame_std was given, but EMT has no forces_frame_std"):
        run_md(crystal, EMT(), max_frame_std=0.1)
    with pytest.raises(InputError, match=r"max_committee_std was given, .* give several models"):
        run_md(crystal, EMT(), max_committee_std=0.1)


def test_overlapping_atoms_cannot_start():
    atoms = Atoms("Cu2", positions=[[0, 0, 0], [0.9, 0, 0]])
    with pytest.raises(InputError, match=r"cannot start: atoms overlap: Cu0 and Cu1 are 0\.90 Å apart"):
        run_md(atoms, EMT())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ensemble": "nvt"}, "expected one of nve, nvt-langevin, nvt-bussi, nvt-nose-hoover, npt, npt-flexible"),
        ({"timestep_fs": 0.0}, "timestep_fs=0.0, expected a finite positive number"),
        ({"temperature_K": -1.0}, "temperature_K=-1.0"),
        ({"temperature_K": float("nan")}, "temperature_K=nan, expected a finite positive number"),
        ({"max_frame_std": float("nan")}, "max_frame_std=nan, expected a positive number"),
        ({"steps": -1}, "steps >= 0"),
        ({"interval": 0}, "intervals >= 1"),
        ({"pressure_GPa": 1.0}, "no effect with ensemble='nvt-langevin'"),
    ],
)
def test_wrong_arguments(crystal, arguments, words):
    with pytest.raises(InputError, match=words):
        run_md(crystal, EMT(), **arguments)


def test_nose_hoover_refuses_constraints_it_would_break(crystal):
    crystal.set_constraint(FixBondLengths([[0, 1]]))
    with pytest.raises(InputError, match="no other constraint"):
        run_md(crystal, EMT(), ensemble="nvt-nose-hoover")


def test_an_old_trajectory_survives_an_overwriting_run_that_cannot_start(slab, tmp_path):
    path = tmp_path / "run.traj"
    run_md(slab, EMT(), steps=2, trajectory=path)
    old = path.read_bytes()
    foreign = slab.copy()
    foreign.symbols[0] = "W"  # EMT has no parameters for it
    with pytest.raises(NotImplementedError, match="W"):
        run_md(foreign, EMT(), steps=2, trajectory=path, overwrite=True)
    assert path.read_bytes() == old
    run_md(slab, EMT(), steps=4, trajectory=path, overwrite=True)
    assert path.read_bytes() != old
