"""Commands that are killed or interrupted: what is saved, what is said, and that they can be continued."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from ase.build import bulk, fcc111
from ase.calculators.emt import EMT
from ase.io import read, write
from click.testing import CliRunner

from faenet_calc.cli import main, relax_output
from faenet_calc.cli import train as train_command
from faenet_calc.cli.options import explained_interrupt
from faenet_calc.cli.relax_output import RelaxOutput, task_key
from faenet_calc.errors import counted
from faenet_calc.graphs.reading import read_structures
from faenet_calc.simulate import relax
from faenet_calc.simulate.trajectory import read_snapshots

N_STRUCTURES = 6


@pytest.fixture(scope="module")
def model(repository):
    return str(repository / "tests" / "data" / "emt-copper.safetensors")


@pytest.fixture
def slabs(tmp_path):
    """A file with slabs whose atoms are off their places."""
    structures = []
    for seed in range(N_STRUCTURES):
        structures.append(fcc111("Cu", (2, 2, 3), a=3.6, vacuum=5.0, periodic=True))
        structures[-1].rattle(0.1, seed=seed)
    write(tmp_path / "slabs.traj", structures)
    return tmp_path / "slabs.traj"


def relax_arguments(slabs, model, *more):
    settings = ("--optimizer", "MDMin", "--fmax", "0.002", "--steps", "2000", "--dtype", "float64")
    return ["relax", "-m", model, str(slabs), "-o", str(slabs.parent / "out.extxyz"), *settings, *more]


def run(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


# Each copy is killed a random number of events after it has written a random number of bytes; the last run is not.
KILLER = """
import random, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import faenet_calc.calculator.calculator, faenet_calc.simulate
from ase.io import read
from faenet_calc.cli import main
from signalled import killed, size
folder, seed, n_kills, *arguments = sys.argv[2:]
steps, out, dice = folder + "/steps/*.traj", Path(folder, "out.extxyz"), random.Random(int(seed))
for _ in range(int(n_kills)):
    goal = size(steps) + dice.randrange(20000)
    killed(lambda: main(arguments), lambda: size(steps) >= goal, dice.randrange(5000))
    print(len(read(out, ":")) if out.exists() else 0)
main(arguments)
"""
TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_relax_killed_at_random_moments_and_resumed(slabs, model, tmp_path, seed):
    # One by one: in a batch, all structures finish at nearly the same time.
    options = ("--trajectory", str(tmp_path / "steps"), "--resume", "--batch-size", "1")
    arguments = relax_arguments(slabs, model, *options)
    command = [sys.executable, "-c", KILLER, str(TESTS), str(tmp_path), str(seed), "12", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    counts = [int(line) for line in done.stdout.splitlines()[:12]]
    assert len(counts) == 12 and counts == sorted(counts), "structures were lost"
    assert 0 < counts[-1] < N_STRUCTURES, "no kill between the first and the last structure"
    killed = read(tmp_path / "out.extxyz", ":")
    (tmp_path / "out.extxyz").unlink()
    assert run(*relax_arguments(slabs, model)).exit_code == 0
    straight = read(tmp_path / "out.extxyz", ":")
    assert [a.info["source"] for a in killed] == [a.info["source"] for a in straight]
    for ours, theirs in zip(killed, straight, strict=True):
        assert ours.info["relax_converged"] and ours.info["relax_fmax"] <= 0.002
        assert ours.get_potential_energy() == pytest.approx(theirs.get_potential_energy(), abs=1e-4)
        assert np.abs(ours.positions - theirs.positions).max() < 0.01
    assert not [path.name for path in tmp_path.rglob(".*")], "temporary files remain"


def interrupted(arguments, pattern, n_bytes=1, events=0):
    """Standard error and exit code of a command that gets Ctrl-C after it has written ``n_bytes`` to some files."""
    command = [sys.executable, TESTS / "signalled.py", "SIGINT", pattern, n_bytes, events, *arguments]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    return done.stderr, done.returncode


@pytest.mark.parametrize("batch_size", ["1", "2"])
def test_ctrl_c_in_relax_saves_what_is_finished_and_says_how_to_continue(slabs, model, tmp_path, batch_size):
    out = tmp_path / "out.extxyz"
    arguments = relax_arguments(slabs, model, "--trajectory", str(tmp_path / "steps"), "--batch-size", batch_size)
    errors, code = interrupted(arguments, out)
    n_saved = len(read(out, ":"))
    assert code == 1 and 1 <= n_saved < N_STRUCTURES
    assert f"Interrupted: {n_saved} of {N_STRUCTURES} structures {'is' if n_saved == 1 else 'are'} finished" in errors
    assert f"{counted(n_saved, 'relaxed structure is', 'relaxed structures are')} saved in {out}" in errors
    assert f"the steps of unfinished ones in {tmp_path / 'steps'}" in errors
    assert "Repeat the command with --resume to continue." in errors and "Traceback" not in errors
    refused = run(*arguments)
    assert refused.exit_code == 2 and "--resume continues it" in refused.stderr
    before = {atoms.info["source"]: atoms.get_potential_energy() for atoms in read(out, ":")}
    resumed = run(*arguments, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert f"{N_STRUCTURES} structures in" in resumed.stdout
    after = {atoms.info["source"]: atoms.get_potential_energy() for atoms in read(out, ":")}
    assert len(after) == N_STRUCTURES
    assert {source: after[source] for source in before} == pytest.approx(before, abs=1e-9)


def test_ctrl_c_in_relax_without_output(slabs, model, tmp_path):
    arguments = relax_arguments(slabs, model, "--log", str(tmp_path / "log"))
    del arguments[4:6]
    errors, code = interrupted(arguments, tmp_path / "log")
    assert code == 1 and "nothing was saved. Use -o FILE" in errors


def test_ctrl_c_in_md(slabs, model, tmp_path):
    out = tmp_path / "run.traj"
    settings = ("--ensemble", "nve", "--interval", "2", "--dtype", "float64")
    arguments = ["md", "-m", model, f"{slabs}@0", *settings, "-o"]
    errors, code = interrupted([*arguments, out, "--steps", "100000"], out, 20_000)
    snapshots = read_snapshots(out)
    step = 2 * (len(snapshots) - 1)
    assert code == 1
    assert f"{out} holds {len(snapshots)} snapshots up to step {step} of 100000" in errors and "--resume" in errors
    assert run(*arguments, out, "--steps", step + 10, "--resume").exit_code == 0
    straight = tmp_path / "straight.traj"
    assert run(*arguments, straight, "--steps", step + 10).exit_code == 0
    ours, theirs = read(out, ":"), read(straight, ":")
    assert len(ours) == len(theirs)
    assert np.array_equal(ours[-1].positions, theirs[-1].positions)


def test_ctrl_c_in_screen(tmp_path):
    out = tmp_path / "screening"
    write(tmp_path / "slab.traj", fcc111("Cu", (2, 2, 3), a=3.6, vacuum=7.5, periodic=True))
    arguments = ["screen", "-m", "copper-s", "--slab", tmp_path / "slab.traj", "-o", out, "--rotations", "6"]
    arguments += ["--adsorbate", "OH", "--adsorbate", "CO", "--fmax", "0.1"]

    def n_finished():
        return sum(len(path.read_text().splitlines()) for path in (out / "journals").glob("*.jsonl"))

    errors, code = interrupted(arguments, out / "journals" / "*.jsonl")
    assert code == 1 and "Traceback" not in errors
    finished = counted(n_finished(), "configuration is", "configurations are")
    assert f"Interrupted: {finished} finished and saved in {out}" in errors
    assert "--resume" in errors
    assert run(*arguments, "--resume").exit_code in (0, 3)
    assert (out / "results.csv").exists()


@pytest.fixture
def labels(slabs, tmp_path):
    structures = read(slabs, ":")
    for atoms in structures:
        atoms.calc = EMT()
        atoms.get_forces()
    write(tmp_path / "labels.traj", structures)
    return tmp_path / "labels.traj"


def test_ctrl_c_in_train(labels, tmp_path):
    out = tmp_path / "run"
    arguments = ["train", labels, "-o", out, "--set", "run.save_every_steps=1", "--set", "run.max_epochs=100000"]
    arguments += ["--set", "data.val_fraction=0.2", "--set", "optim.batch_size=2", "--set", "run.validate_every=1"]
    best, state = out / "best.safetensors", out / "state.pt"
    errors, code = interrupted(arguments, best, events=100_000)  # a few steps later
    assert code == 1 and "Traceback" not in errors
    assert f"Interrupted: {state} holds the run up to step " in errors
    assert f"the best weights so far are in {best}" in errors
    assert "--resume auto" in errors
    # With --overwrite and before the first step, the folder still holds the run that was to be replaced.
    unchanged = train_command._interrupted(out, train_command._saved_at(out))
    assert unchanged == "Interrupted before the first step; nothing was saved."


@pytest.mark.parametrize("interrupted_first", [True, False])
def test_errors_of_the_clean_up_after_ctrl_c_do_not_hide_it(capsys, interrupted_first):
    context = click.Context(click.Command("x"))
    with (
        pytest.raises(click.exceptions.Exit if interrupted_first else OSError),
        explained_interrupt(context, lambda: "saved"),
    ):
        try:
            if interrupted_first:
                raise KeyboardInterrupt
        finally:
            raise OSError(9, "Bad file descriptor")
    assert ("saved" in capsys.readouterr().err) == interrupted_first


def test_ctrl_c_in_generate(repository, tmp_path):
    out = tmp_path / "labels"
    recipe = repository / "examples" / "recipes" / "emt.yaml"

    def n_finished():
        journal = out / "journal.jsonl"
        return journal.read_text().count("\n") - 1 if journal.exists() else 0

    errors, code = interrupted(["data", "generate", recipe, "-o", out], out / "labels.extxyz", 10_000)
    assert n_finished() > 0
    assert code == 1 and "Traceback" not in errors
    assert f"Interrupted: the labels of {n_finished()} finished tasks are in {out}" in errors


def test_finished_structures_are_skipped_and_others_are_not(slabs, model):
    def resume(*more):
        result = run(*relax_arguments(slabs, model, "--resume", *more))
        assert result.exit_code in (0, 3), result.output
        lines = [line.split() for line in result.stdout.splitlines() if "slabs.traj@" in line]
        return [line[3] != "-" for line in lines]  # whether time was spent

    assert resume("--steps", "5") == [True] * N_STRUCTURES  # nothing is there to resume from
    assert resume("--steps", "5") == [False] * N_STRUCTURES
    assert resume("--fmax", "0.05") == [True] * N_STRUCTURES, "more steps are allowed now"
    assert resume("--fmax", "0.05") == [False] * N_STRUCTURES
    assert resume("--fmax", "0.01") == [True] * N_STRUCTURES, "a smaller force was asked for"


def test_resume_refuses_files_of_other_runs(slabs, model, tmp_path):
    out = tmp_path / "out.extxyz"
    assert run(*relax_arguments(slabs, model, "--fmax", "0.1")).exit_code == 0
    content = out.read_bytes()
    for other in (["--frames", "one"], ["--cell"], ["--dtype", "float32"]):
        result = run(*relax_arguments(slabs, model, "--resume", *other))
        assert result.exit_code == 2 and "from other inputs, another model or other settings" in result.stderr
    moved = read(slabs, ":")
    moved[0].positions[0] += 0.1
    write(slabs, moved)
    assert run(*relax_arguments(slabs, model, "--resume")).exit_code == 2
    assert out.read_bytes() == content
    precious = tmp_path / "precious.extxyz"
    write(precious, bulk("Cu"))
    content = precious.read_bytes()
    result = run("relax", "-m", model, f"{slabs}@0", "-o", precious, "--resume")
    assert result.exit_code == 2 and precious.read_bytes() == content
    write(tmp_path / "out.cif", bulk("Cu"))
    result = run("relax", "-m", model, f"{slabs}@0", "-o", tmp_path / "out.cif", "--resume")
    assert result.exit_code == 2 and "use -o with .extxyz or .traj" in result.stderr


def test_large_files_are_not_rewritten_after_every_structure(slabs, tmp_path, monkeypatch):
    items = read_structures(slabs)
    keys = [task_key(item, {}) for item in items]
    assert len(set(keys)) == N_STRUCTURES
    result = relax(items[0].atoms, EMT(), steps=0)
    always = RelaxOutput(tmp_path / "always.extxyz", keys, resume=False)
    monkeypatch.setattr(relax_output, "_WRITING_SHARE", np.inf)
    for n in range(3):
        always.add(keys[n], items[n], replace(result, atoms=items[n].atoms.copy()))
        assert always.n_saved == len(read(always.path, ":")) == n + 1
    monkeypatch.setattr(relax_output, "_WRITING_SHARE", 1e-9)  # as if writing took very long
    seldom = RelaxOutput(tmp_path / "seldom.extxyz", keys, resume=False)
    for n in (2, 1, 0):
        seldom.add(keys[n], items[n], replace(result, atoms=items[n].atoms.copy()))
        assert seldom.n_saved == len(read(seldom.path, ":")) == 1
    seldom.write()
    sources = [atoms.info["source"] for atoms in read(seldom.path, ":")]
    assert sources == [item.name for item in items[:3]], "in the order of the input"
