"""The commands predict, relax and md: files in, numbers and files out, exit codes, messages."""

import json
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.constraints import FixAtoms
from ase.io import read, write
from click.testing import CliRunner

from faenet_calc.calculator.calculator import FAENetCalculator
from faenet_calc.cli import main
from faenet_calc.frames.config import FrameMode
from faenet_calc.graphs.writing import reserved
from faenet_calc.potential.checkpoint import save_potential
from faenet_calc.potential.potential import build_potential


@pytest.fixture(scope="module")
def model(repository):
    return repository / "tests" / "data" / "emt-copper.safetensors"


@pytest.fixture(scope="module")
def committee(tmp_path_factory):
    folder = tmp_path_factory.mktemp("committee")
    for seed in (1, 2):
        plain = {"group_period_channels": 0, "properties": "none"}
        tiny = build_potential(seed=seed, hidden_channels=16, filters=16, interactions=1, cutoff=4.0, atoms=plain)
        save_potential(tiny, folder / f"member-{seed}.safetensors")
    return folder


@pytest.fixture
def files(tmp_path):
    """A slab with a fixed layer, and a file with three crystals."""
    slab = fcc111("Cu", (2, 2, 3), a=3.61, vacuum=6.0, periodic=True)
    slab.set_constraint(FixAtoms(mask=slab.get_tags() >= 3))
    slab.positions[-1] += [0.1, 0.0, 0.15]
    slab.write(tmp_path / "slab.traj")
    crystals = [bulk("Cu", a=a, cubic=True) for a in (3.5, 3.6, 3.7)]
    write(tmp_path / "crystals.extxyz", crystals)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_predict_prints_a_table(files, model):
    result = run("predict", "-m", model, files / "slab.traj", files / "crystals.extxyz")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 5 and "energy/eV" in lines[0] and "Cu12" in lines[1] and "crystals.extxyz@2" in lines[4]
    calc = FAENetCalculator(model)
    expected = calc.get_potential_energy(read(files / "slab.traj"))
    assert float(lines[1].split()[2]) == pytest.approx(expected, abs=1e-3)


def test_predict_gives_json(files, model):
    result = run(
        "predict", "-m", model, files / "crystals.extxyz", "--json", "-p", "energy", "-p", "forces", "-p", "stress"
    )
    assert result.exit_code == 0, result.stderr
    content = json.loads(result.stdout)
    assert [row["index"] for row in content["results"]] == [0, 1, 2] and content["energy_kind"] == "total"
    calc = FAENetCalculator(model)
    for row, atoms in zip(content["results"], read(files / "crystals.extxyz", ":"), strict=True):
        atoms.calc = calc
        assert row["energy"] == pytest.approx(atoms.get_potential_energy(), abs=1e-5)
        assert np.allclose(row["forces"], atoms.get_forces(), atol=1e-5)
        assert np.allclose(row["stress"], atoms.get_stress(), atol=1e-6)
        assert row["formula"] == "Cu4" and row["file"].endswith("crystals.extxyz")


def test_predict_writes_structures_with_results(files, model):
    out = files / "out.extxyz"
    result = run("predict", "-m", model, files / "slab.traj", "-o", out, "-p", "energy", "-p", "forces_frame_std")
    assert result.exit_code == 0, result.stderr
    atoms = read(out)
    assert np.isfinite(atoms.get_potential_energy()) and atoms.arrays["forces_frame_std"].shape[0] == 12
    assert np.isfinite(atoms.get_forces(apply_constraint=False)).all()


def test_predict_with_a_committee(files, committee):
    single = run("predict", "-m", committee / "member-1.safetensors", files / "crystals.extxyz@0", "--json")
    several = [
        run("predict", *("-m", committee / "member-1.safetensors"), *("-m", committee / "member-2.safetensors"),
            files / "crystals.extxyz@0", "--json"),
        run("predict", "-m", committee / "*.safetensors", files / "crystals.extxyz@0", "--json"),
    ]  # fmt: skip
    assert all(result.exit_code == 0 for result in (single, *several)), several[0].stderr
    alone = json.loads(single.stdout)["results"][0]
    first, second = (json.loads(result.stdout)["results"][0] for result in several)
    assert first == second and len(first["energy_comm"]) == 2 and first["energy_var"] > 0
    assert first["energy_comm"][0] == pytest.approx(alone["energy"]) and "energy_var" not in alone
    table = run("predict", "-m", committee / "*.safetensors", files / "crystals.extxyz")
    assert "committee std/meV" in table.stdout


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype(files, model, dtype):
    result = run("predict", "-m", model, files / "crystals.extxyz@1", "--json", "--dtype", dtype)
    energy = json.loads(result.stdout)["results"][0]["energy"]
    exact = FAENetCalculator(model, dtype="float64").get_potential_energy(read(files / "crystals.extxyz", 1))
    assert energy == pytest.approx(exact, abs=1e-11 if dtype == "float64" else 1e-4)


def test_inputs_of_pymatgen_and_ase(files, model):
    from pymatgen.core import Lattice, Molecule, Structure

    cubic = Structure(Lattice.cubic(3.6), ["Cu"] * 4, [[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]])
    cubic.to(str(files / "a.json"))
    cubic.to(str(files / "b.cif"))
    cubic.to(str(files / "POSCAR"), fmt="poscar")
    (files / "two.json").write_text(
        json.dumps([cubic.as_dict(), Molecule(["Cu", "Cu"], [[0, 0, 0], [2.2, 0, 0]]).as_dict()])
    )
    bulk("Cu", a=3.6, cubic=True).write(files / "ase.json")
    names = ["a.json", "b.cif", "POSCAR", "ase.json", "crystals.extxyz@1"]
    result = run("predict", "-m", model, *(files / name for name in names), "--json")
    assert result.exit_code == 0, result.stderr
    energies = [row["energy"] for row in json.loads(result.stdout)["results"]]
    assert len(energies) == 5 and np.ptp(energies) < 1e-4
    both = json.loads(run("predict", "-m", model, files / "two.json", "--json").stdout)["results"]
    assert [row["n_atoms"] for row in both] == [4, 2]


@pytest.mark.parametrize("command", ["predict", "relax", "md"])
def test_bad_input_files_are_named(files, model, command):
    (files / "broken.cif").write_text("data_nothing\n_cell_length_a 3\n")
    (files / "broken.json").write_text("{")
    (files / "notes.txt").write_text("dear diary")
    crowded = molecule("CO")
    crowded.positions[1] = crowded.positions[0] + [0, 0, 0.1]
    crowded.write(files / "crowded.extxyz")
    for name, words in [
        ("absent.xyz", "no such file"),
        ("broken.cif", "broken.cif"),
        ("broken.json", "cannot be read"),
        ("notes.txt", "notes.txt"),
        ("crowded.extxyz", "crowded.extxyz: "),
    ]:
        result = run(command, "-m", model, files / name)
        assert result.exit_code == 2, f"{name}: {result.output}"
        assert name in result.stderr and words in result.stderr
        assert "Traceback" not in result.stderr and result.stdout == ""


def test_partially_occupied_sites_are_refused(files, model):
    from pymatgen.core import Lattice, Structure

    alloy = Structure(Lattice.cubic(2.9), [{"Cu": 0.5, "Au": 0.5}], [[0, 0, 0]])
    alloy.to(str(files / "alloy.cif"))
    alloy.to(str(files / "alloy.json"))
    for name in ("alloy.cif", "alloy.json"):
        result = run("predict", "-m", model, files / name)
        assert result.exit_code == 2 and "partially occupied" in result.stderr and name in result.stderr


def test_unknown_models_and_devices(files, model):
    result = run("predict", "-m", files / "absent.safetensors", files / "slab.traj")
    assert result.exit_code == 2 and "absent.safetensors" in result.stderr and "Traceback" not in result.stderr
    verbose = run("predict", "-m", files / "absent.safetensors", files / "slab.traj", "-v")
    assert verbose.exit_code == 2 and "Traceback" in verbose.stderr
    assert run("predict", "-m", model, files / "slab.traj", "--device", "abacus").exit_code == 2
    assert run("predict", "-m", model).exit_code == 2
    assert run("predict", "-m", model, files / "slab.traj", "-p", "charm").exit_code != 0


@pytest.mark.parametrize("command", ["predict", "relax"])
def test_nothing_is_overwritten_unasked(files, model, command):
    out = files / "out.extxyz"
    out.write_text("precious")
    refused = run(command, "-m", model, files / "crystals.extxyz@1", "-o", out)
    assert refused.exit_code == 2 and "out.extxyz exists; " in refused.stderr and "--overwrite" in refused.stderr
    assert out.read_text() == "precious"
    assert run(command, "-m", model, files / "crystals.extxyz@1", "-o", out, "--overwrite").exit_code == 0
    assert len(read(out)) == 4
    assert not [path for path in files.iterdir() if path.name.startswith(".")], "temporary files were left"


@pytest.mark.parametrize(
    ("name", "words"),
    [("absent/out.extxyz", "does not exist"), ("out.xyzzy", "format"), ("POSCAR", "holds a single structure")],
)
def test_outputs_that_cannot_be_written_are_refused_before_the_work(files, model, name, words):
    result = run("predict", "-m", model, files / "crystals.extxyz", "-o", files / name)
    assert result.exit_code == 2 and words in result.stderr and result.stdout == ""


def test_relax(files, model):
    out, trajectory, log = files / "out.extxyz", files / "run.traj", files / "run.log"
    result = run("relax", "-m", model, files / "slab.traj", "-o", out, "--trajectory", trajectory, "--log", log)
    assert result.exit_code == 0, result.output
    assert "converged" in result.stdout and "slab.traj" in result.stdout
    relaxed, start = read(out), read(files / "slab.traj")
    assert np.linalg.norm(relaxed.get_forces(), axis=1).max() <= 0.05
    assert np.array_equal(relaxed.positions[:4].round(6), start.positions[:4].round(6)), "the fixed layer moved"
    assert relaxed.info["relax_converged"] and relaxed.info["source"].endswith("slab.traj")
    assert len(read(trajectory, ":")) == relaxed.info["relax_steps"] + 1 and log.exists()


def test_relax_with_one_frame_first(files, model):
    """The end is a minimum with all frames, reached in fewer steps with all of them."""
    arguments = ("relax", "-m", model, files / "slab.traj", "--json", "--fmax", "0.02")
    straight, faster = (json.loads(run(*arguments, *more).stdout)["results"][0] for more in ((), ["--one-frame-first"]))
    assert faster["converged"] and faster["fmax"] <= 0.02
    assert faster["n_steps"] < straight["n_steps"]
    assert faster["energy"] == pytest.approx(straight["energy"], abs=0.01)


def test_relax_many_with_json_and_a_folder_of_trajectories(files, model):
    folder = files / "steps"
    arguments = ("-m", model, files / "slab.traj", files / "crystals.extxyz", "--cell", "--json")
    result = run("relax", *arguments, "--trajectory", folder, "--fmax", "0.03")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["results"]
    assert len(rows) == 4 and all(row["converged"] and row["error"] is None for row in rows)
    assert np.ptp([row["energy"] for row in rows[1:]]) < 2e-3, "the crystals have one minimum"
    assert sorted(path.name for path in folder.iterdir()) == [
        *(f"crystals-{n}.traj" for n in range(3)), "slab.traj",
    ]  # fmt: skip
    again = run("relax", *arguments, "--trajectory", folder, "--fmax", "0.03")
    assert again.exit_code == 2 and "slab.traj exists" in again.stderr
    resumed = run("relax", *arguments, "--trajectory", folder, "--fmax", "0.03", "--resume")
    assert resumed.exit_code == 0
    assert [row["n_steps"] for row in json.loads(resumed.stdout)["results"]] == [row["n_steps"] for row in rows]


def test_relax_gives_the_same_results_in_batches(files, model):
    results = []
    for size in (1, 3):
        arguments = ("--json", "--batch-size", size, "--fmax", "0.02", "--dtype", "float64")
        done = run("relax", "-m", model, files / "crystals.extxyz", files / "slab.traj", *arguments)
        assert done.exit_code == 0, done.output
        results.append(json.loads(done.stdout)["results"])
    alone, together = results
    assert [(row["file"], row["index"]) for row in together] == [(row["file"], row["index"]) for row in alone]
    assert [row["n_steps"] for row in together] == [row["n_steps"] for row in alone]
    assert [row["energy"] for row in together] == pytest.approx([row["energy"] for row in alone], abs=1e-9)


def test_relax_says_when_it_did_not_converge(files, model):
    result = run("relax", "-m", model, files / "slab.traj", "--steps", "1")
    assert result.exit_code == 3 and "NOT converged" in result.stdout


def test_relax_without_output_says_that_nothing_is_saved(files, model):
    result = run("relax", "-m", model, files / "slab.traj", "--steps", 1)
    assert "not saved; -o FILE" in result.stderr
    molecule("CO").write(files / "co.xyz")
    refused = run("relax", "-m", model, files / "co.xyz")
    assert refused.exit_code == 2 and "not saved" not in refused.stderr  # there is nothing to save
    assert "not saved" not in run("relax", "-m", model, files / "slab.traj", "--steps", 1, "-q").stderr
    assert (
        "not saved" not in run("relax", "-m", model, files / "slab.traj", "--steps", 1, "-o", files / "b.traj").stderr
    )


def test_misspelled_words_are_answered_with_similar_ones(files, model):
    cases = {
        ("relaxx", files / "slab.traj"): "Did you mean 'relax'?",
        ("data", "splitt"): "Did you mean 'split'?",
        ("optimise-all",): "Commands: predict, relax, md",
        ("predict", "-m", model, files / "slab.traj", "-p", "force"): "did you mean forces?",
        ("predict", "-m", "metals_m", files / "slab.traj"): "(did you mean 'metals-m'?); shipped: ",
    }
    for words, expected in cases.items():
        result = run(*words)
        assert result.exit_code == 2 and expected in result.stderr, (words, result.output)


def test_relax_with_a_wrong_optimizer(files, model):
    result = run("relax", "-m", model, files / "slab.traj", "--optimizer", "simplex")
    assert result.exit_code == 2 and "choose from BFGS" in result.stderr


def test_relax_continues_with_the_other_structures(files, model):
    crowded = bulk("Cu", a=0.3)  # atoms 0.2 Å apart
    crowded.write(files / "crowded.cif")
    out = files / "out.extxyz"
    arguments = ("relax", "-m", model, files / "crowded.cif", files / "crystals.extxyz@1", "-o", out)
    result = run(*arguments)
    assert result.exit_code == 1 and "Error: " in result.stderr and "crowded.cif: overlapping atoms" in result.stderr
    assert "2 structures in" in result.stdout and "1 converged, 1 not computed" in result.stdout
    assert [atoms.get_chemical_formula() for atoms in read(out, ":")] == ["Cu4"]
    rows = json.loads(run(*arguments, "--json", "--overwrite").stdout)["results"]
    assert "overlapping atoms" in rows[0]["error"] and not rows[0]["converged"] and rows[1]["converged"]
    assert run(*arguments[:4]).exit_code == 2, "no structure at all could be used"


def test_relax_checks_its_outputs_before_the_work(files, model):
    folder = files / "steps"
    folder.mkdir()
    (folder / "slab.traj").write_text("precious")
    result = run("relax", "-m", model, files / "crystals.extxyz@1", files / "slab.traj", "--trajectory", folder)
    assert result.exit_code == 2 and "slab.traj exists; --resume continues it, --overwrite replaces it" in result.stderr
    assert (folder / "slab.traj").read_text() == "precious" and len(list(folder.iterdir())) == 1
    for option in ("--resume", "--overwrite"):
        assert run("relax", "-m", model, files / "slab.traj", "-o", files, option).exit_code == 2


@pytest.mark.parametrize("command", ["predict", "relax"])
def test_an_output_is_written_by_one_process_at_a_time(files, model, command):
    out = files / "out.extxyz"
    with reserved(out):
        result = run(command, "-m", model, files / "crystals.extxyz@1", "-o", out)
    assert result.exit_code == 2 and "out.extxyz is being written by another process" in result.stderr
    assert run(command, "-m", model, files / "crystals.extxyz@1", "-o", out).exit_code == 0


@pytest.mark.parametrize("command", ["predict", "relax"])
@pytest.mark.parametrize("name", ["out.cif", "out.vasp"])
def test_formats_that_lose_results_are_announced(files, model, command, name):
    slab = read(files / "slab.traj")
    slab.pbc = [True, True, False]
    slab.write(files / "open.traj")
    result = run(command, "-m", model, files / "open.traj", "-o", files / name)
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Warning: ") and name in line]
    assert "does not hold energies and forces" in line and "TTF may be read back differently" in line
    assert "Warning" not in run(command, "-m", model, files / "open.traj", "-o", files / "out.traj").stderr


@pytest.mark.parametrize("frames", get_args(FrameMode))
def test_frames(files, model, frames):
    arguments = ("predict", "-m", model, files / "crystals.extxyz@2", "--json", "--dtype", "float64", "--seed", "3")
    result = run(*arguments, "--frames", frames, "-p", "energy")
    assert result.exit_code == 0, result.output
    calc = FAENetCalculator(model, frames=frames, dtype="float64", seed=3)
    (expected,) = calc.predict([read(files / "crystals.extxyz", 2)], properties=["energy"])
    assert json.loads(result.stdout)["results"][0]["energy"] == pytest.approx(expected["energy"], abs=1e-12)


def test_frames_change_relaxations_and_dynamics(files, model):
    for command, key in (("relax", "energy"), ("md", "energy")):
        arguments = (command, "-m", model, files / "slab.traj", "--json", "--steps", "3", "--dtype", "float64")
        values = []
        for frames in ("one", "all"):
            content = json.loads(run(*arguments, "--frames", frames).stdout)
            values.append((content.get("results") or [content])[0][key])
        assert values[0] != values[1] and values[0] == pytest.approx(values[1], abs=0.05)


@pytest.mark.parametrize("device", ["meta", "abacus", "cuda:x", ""])
def test_devices_that_cannot_compute(files, model, device):
    result = run("predict", "-m", model, files / "slab.traj", "--device", device)
    assert result.exit_code == 2 and f"'{device}' is not a device to compute on; choose cpu" in result.stderr


def test_an_at_sign_in_a_file_name(files, model):
    write(files / "slab@2.extxyz", read(files / "crystals.extxyz", ":2"))
    rows = json.loads(run("predict", "-m", model, files / "slab@2.extxyz", "--json").stdout)["results"]
    assert [row["file"].endswith("slab@2.extxyz") for row in rows] == [True, True]


def test_a_reader_that_leaves_early_is_no_error(files, model):
    command = [sys.executable, "-m", "faenet_calc", "predict", "-m", model, files / "crystals.extxyz"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait() == 1


def test_warnings_are_one_line(files, model):
    Atoms("Cu2", positions=[[0, 0, 0], [0, 0, 30]]).write(files / "apart.xyz")
    result = run("predict", "-m", model, files / "apart.xyz")
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stderr.splitlines() if "no neighbor" in line]
    assert line.startswith("Warning: ") and ".py" not in line
    assert run("predict", "-m", model, files / "apart.xyz", "-q").stderr == ""


def test_elements_that_were_never_trained_on_are_refused(files, model):
    molecule("CO").write(files / "co.xyz")
    result = run("predict", "-m", model, files / "co.xyz", "-q")
    assert result.exit_code == 2 and "never trained on C, O (trained on Cu)" in result.stderr


def test_relax_killed_and_resumed(files, model, repository):
    out, trajectory = files / "out.extxyz", files / "run.traj"
    arguments = ["relax", "-m", model, files / "slab.traj", "-o", out, "--trajectory", trajectory, "--resume"]
    arguments += ["--optimizer", "MDMin", "--fmax", "0.002", "--steps", "3000"]
    signalled = [repository / "tests" / "signalled.py", "SIGKILL", trajectory, 20_000, 500]
    subprocess.run([sys.executable, *map(str, [*signalled, *arguments])], capture_output=True, check=False)
    n_before = len(read(trajectory, ":"))
    assert n_before > 2 and not out.exists(), "the run was over before it was killed"
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    straight = run("relax", "-m", model, files / "slab.traj", "--fmax", "0.002", "--json")
    assert read(out).get_potential_energy() == pytest.approx(
        json.loads(straight.stdout)["results"][0]["energy"], abs=1e-3
    )
    assert len(read(trajectory, ":")) > n_before


def test_md(files, model):
    out, log = files / "run.traj", files / "md.log"
    result = run("md", "-m", model, files / "slab.traj", "-o", out, "--steps", "20", "--interval", "5", "--log", log)
    assert result.exit_code == 0, result.output
    assert "temperature" in result.stdout and len(read(out, ":")) == 5 and log.exists()
    again = run("md", "-m", model, files / "slab.traj", "-o", out, "--steps", "20")
    assert again.exit_code == 2 and "run.traj exists" in again.stderr


def test_md_resumed_is_the_same_to_the_bit(files, model):
    def md(name, steps, *more):
        arguments = ("--ensemble", "nve", "--steps", steps, "--timestep", 2, "--seed", 5, "--interval", 10, "--json")
        return run("md", "-m", model, files / "slab.traj", "-o", files / name, *arguments, *more)

    straight = md("straight.traj", 60)
    assert straight.exit_code == 0, straight.output
    assert md("halves.traj", 30).exit_code == 0 and md("halves.traj", 60, "--resume").exit_code == 0
    ours, theirs = read(files / "halves.traj", ":"), read(files / "straight.traj", ":")
    assert len(ours) == len(theirs) == 7
    for a, b in zip(ours, theirs, strict=True):
        assert np.array_equal(a.positions, b.positions) and np.array_equal(a.get_momenta(), b.get_momenta())
    summary = json.loads(straight.stdout)
    assert summary["n_steps"] == 60 and summary["time_ps"] == pytest.approx(0.12)
    assert abs(summary["drift_meV_per_atom_ps"]) < 5 and summary["stopped_because"] is None


def test_md_stops_with_a_message_and_a_snapshot(files, model):
    cold = bulk("Cu", a=3.6, cubic=True)
    cold.set_momenta(np.full((4, 3), 0.3) * [[1], [-1], [1], [-1]])
    cold.write(files / "cold.traj")
    result = run(
        *("md", "-m", model, files / "cold.traj", "-o", files / "run.traj", "--json", "--steps", 500),
        *("--temperature", 2000, "--max-temperature", 400, "--thermostat", 20),
    )
    assert result.exit_code == 1, result.output
    content = json.loads(result.stdout)
    assert "temperature exploded" in content["stopped_because"] and content["n_steps"] < 500
    assert f"stopped after {content['n_steps']} steps: the temperature exploded" in result.stderr
    assert read(content["snapshot"]).info["stopped_because"] == content["stopped_because"]


def test_md_outside_the_domain_of_the_model_exits_with_3(files):
    hot = fcc111("Cu", (2, 2, 3), a=3.63, vacuum=6.0)
    hot.set_momenta(np.random.default_rng(0).normal(scale=15.0, size=(len(hot), 3)))
    hot.write(files / "hot.traj")
    limits = ("--ensemble", "nve", "--max-temperature", "1e9", "--steps", 200)
    result = run("md", "-m", "metals-s", "--frames", "one", files / "hot.traj", *limits, "--json")
    assert result.exit_code == 3, result.output
    assert "outside the domain of the model" in result.stderr
    content = json.loads(result.stdout)
    assert content["domain"] == "outside" and content["n_steps"] < 200


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("relax", "--fmax"),
        ("md", "--temperature"),
        ("md", "--timestep"),
        ("md", "--thermostat"),
        ("md", "--barostat"),
        ("md", "--max-temperature"),
        ("md", "--max-frame-std"),
        ("md", "--max-committee-std"),
    ],
)
def test_numbers_out_of_range_are_refused(files, model, command, option, value):
    result = run(command, "-m", model, files / "crystals.extxyz@0", f"{option}={value}")
    assert result.exit_code == 2 and option in result.stderr, result.output


@pytest.mark.parametrize(("command", "option"), [("relax", "--cell"), ("md", "--ensemble=npt")])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_pressures_are_finite(files, model, command, option, value):
    result = run(command, "-m", model, files / "crystals.extxyz@0", option, f"--pressure={value}")
    assert result.exit_code == 2 and "not a finite number" in result.stderr


def test_md_watches_the_committee(files, committee):
    limit = ("--max-committee-std", "1e-6", "--steps", "5")
    result = run("md", "-m", committee / "*.safetensors", files / "slab.traj", *limit)
    assert result.exit_code == 2 and "cannot start: the model is uncertain: committee spread" in result.stderr
    assert run("md", "-m", committee / "*.safetensors", files / "slab.traj", *limit[2:]).exit_code == 0


def test_md_takes_one_structure(files, model):
    result = run("md", "-m", model, files / "crystals.extxyz")
    assert result.exit_code == 2 and "has 3 structures; select one" in result.stderr
    refused = run("md", "-m", model, files / "crystals.extxyz@0", "--max-committee-std", "0.1", "--steps", "1")
    assert refused.exit_code == 2 and "give several models" in refused.stderr


def test_progress_bars_are_for_terminals(files, model):
    result = run("relax", "-m", model, files / "crystals.extxyz@0", "--cell")
    assert "steps/s" not in result.stderr and "\r" not in result.output
    quiet = run("relax", "-m", model, files / "crystals.extxyz@1", "-q")
    assert quiet.stdout == "" and quiet.exit_code == 0
