"""What the commands say: progress on terminals, interruptions, tables, summaries and mistakes."""

import os
import re
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111
from ase.calculators.emt import EMT
from ase.cluster import Icosahedron
from ase.io import write
from click.testing import CliRunner

import faenet_calc.screening.screen as screening
from faenet_calc import FAENetCalculator, load_potential, relax
from faenet_calc.cli import main
from faenet_calc.screening import surfaces
from faenet_calc.simulate.batch import relax_batch


@pytest.fixture(scope="module")
def model(repository):
    return repository / "tests" / "data" / "emt-copper.safetensors"


@pytest.fixture
def slab(tmp_path):
    atoms = fcc111("Cu", (2, 2, 2), a=3.63, vacuum=6.0, periodic=True)
    atoms.positions[-1, 2] += 0.1
    atoms.write(tmp_path / "slab.traj")
    return tmp_path / "slab.traj"


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def screen_arguments(slab, *more):
    model = ("-m", "metals-s", "--frames", "one", "--fmax", "0.2")
    return ["screen", *model, "--adsorbate", "H", "-o", slab.parent / "run", *more]


def on_terminal(*arguments):
    """Exit code and stderr of a command whose stderr is a terminal, one that does not tell its size."""
    pty = pytest.importorskip("pty", reason="Windows has no pseudo-terminals")
    reader, terminal = pty.openpty()
    received = []

    def read():
        try:
            while data := os.read(reader, 65536):
                received.append(data)
        except OSError:  # the other end is closed
            pass

    command = [sys.executable, "-m", "faenet_calc", *map(str, arguments)]
    process = subprocess.Popen(command, stderr=terminal, stdout=subprocess.DEVNULL)
    os.close(terminal)
    thread = threading.Thread(target=read)
    thread.start()
    code = process.wait()
    thread.join()
    os.close(reader)
    return code, b"".join(received).decode()


def test_screening_shows_its_stages_on_a_terminal(slab):
    code, shown = on_terminal(*screen_arguments(slab, "--bulk", "Cu", "--miller", 1, 1, 1, "--width", 0, "-v"))
    assert code == 0, shown
    stages = ["bulk Cu:", "clean slabs:", "gas references:", "reference H2: ", "configurations, 0 of them", "screen:"]
    assert [shown.index(stage) for stage in stages] == sorted(shown.index(stage) for stage in stages)
    n = shown.partition(" configurations, 0 of them")[0].split()[-1]
    assert f"{n}/{n} [" in shown and f"({n} of {n})" in shown


@pytest.mark.parametrize("verbosity", ["-q", "-v", None])
def test_dynamics_shows_its_steps_on_a_terminal(slab, model, verbosity):
    arguments = ("md", "-m", model, slab, "--steps", 40, "--interval", 10)
    code, shown = on_terminal(*arguments, *([verbosity] if verbosity else []))
    assert code == 0, shown
    if verbosity == "-q":
        assert shown == ""
    else:
        assert "40/40 [" in shown and " steps/s, " in shown and " K" in shown
        assert ("T/K" in shown) == (verbosity == "-v")


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("bulk", "Interrupted: nothing was saved. Start the command again."),
        ("references", "Interrupted before the references were finished: {out} holds no results yet."),
        (
            "configurations",
            "Interrupted before the first configuration was finished: the references are kept in {out}.",
        ),
    ],
)
def test_an_interrupted_screening_says_what_is_kept(slab, monkeypatch, moment, expected):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    place = {"bulk": (surfaces, "relax"), "references": (screening, "relax_batch")}
    if moment == "bulk":
        arguments = screen_arguments(slab, "--bulk", "Cu", "--miller", 1, 1, 1, "--width", 0)
    else:
        arguments = screen_arguments(slab, "--slab", slab, "--width", 0)
    with monkeypatch.context() as patch:
        patch.setattr(*place.get(moment, (screening, "relax_chunk")), interrupt)
        result = run(*arguments)
    out = slab.parent / "run"
    assert result.exit_code == 1 and expected.format(out=out) in result.stderr, result.output
    assert out.exists() == (moment != "bulk") and (out / "references.json").exists() == (moment == "configurations")
    assert ("--resume" in result.stderr) == (moment != "bulk")
    again = run(*arguments, *(() if moment == "bulk" else ("--resume",)))
    assert again.exit_code == 0, again.output


def test_predict_prints_every_property_or_says_where_it_is(slab):
    wanted = ("energy_uncertainty_95", "energies_uncertainty", "domain_distance", "forces_uncertainty")
    options = [word for name in wanted for word in ("-p", name)]
    result = run("predict", "-m", "metals-s", slab, *options)
    assert result.exit_code == 0, result.output
    title, numbers = result.stdout.splitlines()
    calc = FAENetCalculator("metals-s")
    (expected,) = calc.predict([fcc111_of(slab)], properties=wanted)
    titles = {
        "95 % within ±/meV": 1000 * expected["energy_uncertainty_95"],
        "max. atom uncertainty/meV": 1000 * expected["energies_uncertainty"].max(),
        "max. force uncertainty/(eV/Å)": expected["forces_uncertainty"].max(),
        "max. domain distance": expected["domain_distance"].max(),
    }
    for text, value in titles.items():
        end = title.index(text) + len(text)
        assert float(numbers[:end].split()[-1]) == pytest.approx(value, abs=2e-3, rel=1e-3)
    assert "not in the table" not in result.stderr
    result = run("predict", "-m", "metals-s", slab, "-p", "energy", "-p", "stress", "-p", "energies")
    note = "stress and energies are not in the table: --json prints them, "
    assert f"{note}-o FILE saves them" in result.stderr
    out = slab.parent / "out.extxyz"
    result = run("predict", "-m", "metals-s", slab, "-p", "energy", "-p", "stress", "-o", out)
    assert f"stress is not in the table: --json prints it, and it is in {out}" in result.stderr
    assert run("predict", "-m", "metals-s", slab, "-p", "stress", "-q").stderr == ""


def fcc111_of(path):
    from ase.io import read

    return read(path)


def test_md_says_what_its_numbers_mean(slab, model):
    arguments = ("md", "-m", model, slab, "-o", slab.parent / "run.traj", "--interval", 10)
    first = run(*arguments, "--steps", 30).stdout
    assert "30 (0.030 ps);" in first and "K (mean and standard deviation over the run)" in first
    resumed = run(*arguments, "--steps", 40, "--resume").stdout
    assert "10 new steps, 40 in total (0.040 ps);" in resumed
    assert "K (mean and standard deviation over the new steps)" in resumed


def test_md_says_when_the_steps_are_done_already(slab, model):
    arguments = ("md", "-m", model, slab, "-o", slab.parent / "run.traj", "--interval", 5)
    assert run(*arguments, "--steps", 10).exit_code == 0
    again = run(*arguments, "--steps", 5, "--resume")
    assert again.exit_code == 0 and "temperature" not in again.stdout and "wrote" not in again.stderr
    assert "run.traj already has 10 steps and --steps 5 is the total: nothing to do" in again.stdout


@pytest.mark.parametrize("coverages", [(1,), (1, 2)])
def test_the_table_of_a_screening_tells_coverages_apart(slab, coverages):
    options = ["--slab", slab, "--width", 0, *(word for n in coverages for word in ("--coverage", n))]
    result = run(*screen_arguments(slab, *options, "--steps", 100))
    assert result.exit_code in (0, 3), result.output
    assert ("coverage" in result.stdout.splitlines()[0].split()) == (len(coverages) > 1)


def test_an_empty_file_of_a_format_known_by_name(tmp_path):
    (tmp_path / "POSCAR").touch()
    result = run("predict", tmp_path / "POSCAR")
    assert result.exit_code == 2 and result.stderr == f"Error: {tmp_path / 'POSCAR'}: the file is empty\n"


def test_large_errors_have_no_exponent():
    from faenet_calc.cli.evaluate import _number

    assert [_number(value) for value in (84753.2, 9999.4, 0.53841, 1.2e-5)] == ["84,753", "9999", "0.5384", "1.2e-05"]


def test_unknown_elements_in_files_are_named(tmp_path):
    (tmp_path / "POSCAR").write_text("x\n1.0\n5 0 0\n0 5 0\n0 0 5\nQq\n1\nDirect\n0 0 0\n")
    result = run("predict", tmp_path / "POSCAR")
    assert result.exit_code == 2 and result.stderr == f"Error: {tmp_path / 'POSCAR'}: 'Qq' is not a chemical element\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--bulk", "Cuu", "--miller", 1, 1, 1), "bulk: 'Cuu' is not an element; did you mean Cu?\n"),
        (("--bulk", "NaCl", "--miller", 1, 1, 1), "'NaCl' is not an element; other crystals are read from structure"),
        (("--bulk", "no.cif", "--miller", 1, 1, 1), "no.cif: no such file"),
        (("--bulk", "H", "--miller", 1, 1, 1), "ASE has no reference crystal of H; give a structure file instead\n"),
        (("--slab", "SLAB", "--adsorbate", "COx"), "or a structure file; did you mean CO?\n"),
        (("--slab", "SLAB", "--adsorbate", "qwertz"), "or a structure file. Examples: C2H2, C2H3"),
        (("--slab", "SLAB", "--steps", 0), "Invalid value for '--steps': 0 is not in the range x>=1"),
        (
            ("--slab", "SLAB", "--adsorbate", "CO", "--steps", 1),
            "gas reference CO: not converged after 1 step (largest force ",
        ),
    ],
)
def test_mistakes_in_screenings(slab, options, expected):
    result = run(*screen_arguments(slab, *(slab if word == "SLAB" else word for word in options)))
    assert result.exit_code == 2 and expected in result.stderr, result.output
    assert "{" not in result.stderr
    if "gas reference" in expected:
        assert "choose other molecules with --gas ELEMENT=MOLECULE" in result.stderr


def test_numbers_agree_with_their_nouns(tmp_path, model):
    broken = Atoms("Cu2", [[0, 0, np.nan], [0, 0, 2.5]])
    broken.write(tmp_path / "one.traj")
    assert "positions of atom 0 (Cu);" in run("predict", "-m", model, tmp_path / "one.traj").stderr
    broken.positions[1] = np.inf
    broken.write(tmp_path / "two.traj")
    assert "positions of atoms 0 (Cu), 1 (Cu);" in run("predict", "-m", model, tmp_path / "two.traj").stderr
    Atoms("Cu3", [[0, 0, 0], [0, 0, 2.5], [0, 0, 30]]).write(tmp_path / "apart.xyz")
    assert "1 atom has no neighbor" in run("predict", "-m", model, tmp_path / "apart.xyz").stderr
    write(tmp_path / "cu.extxyz", bulk("Cu"))
    assert run("data", "check", tmp_path / "cu.extxyz").stdout.startswith("1 structure, 1 atom, 1 element (Cu)")


def test_no_message_has_an_optional_plural(repository):
    found = [
        f"{path.name}: {line.strip()}"
        for path in (repository / "faenet_calc").rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if any(f"{word}(s)" in line for word in ("atom", "element", "structure", "group", "mistake", "file", "step"))
    ]
    assert found == []


@pytest.mark.parametrize("way", ["atoms", "predict", "relax", "relax_batch"])
def test_the_domain_warning_points_at_the_line_of_the_user(way):
    cluster = Icosahedron("Cu", 2)
    cluster.calc = calc = FAENetCalculator("metals-m", frames="one")
    ways = {
        "atoms": lambda: cluster.get_potential_energy(),
        "predict": lambda: calc.predict([cluster]),
        "relax": lambda: relax(cluster, calc, steps=0),
        "relax_batch": lambda: relax_batch([cluster, cluster], calc, steps=0),
    }
    with pytest.warns(UserWarning, match="outside the domain") as caught:
        ways[way]()
    assert [warning.filename for warning in caught] == [__file__]


def test_the_domain_warning_is_short_and_the_results_are_complete():
    trained = load_potential("metals-m")
    domain = replace(
        trained.config.domain,
        lowest_energy=98.0,
        highest_energy=99.0,
        closed_directions={"C": (0, 2), "Cu": (2, 3), "O": (3,)},
    )
    atoms = Atoms("COCu2", [[0, 0, 0], [0, 0, 1.13], [2.3, 0, 0], [4.0, 0, 0]])
    calc = FAENetCalculator(trained.with_domain(domain, trained.uncertainty), frames="one")
    with pytest.warns(UserWarning, match="outside the domain") as caught:
        (found,) = calc.predict([atoms])
    message = str(caught[0].message)
    assert re.search(r"\); and [2-9] more \(results\['why'\]\)\. The results are unreliable", message)
    assert message.count("(training data: ") <= 2 and found["why"].count("(training data: ") >= 3
    assert "element references" not in message
    assert "Cu in molecules and clusters (training data: Cu in slabs and bulk crystals)" in found["why"]
    assert " eV/atom above the element references (training data: 98.00 to 99.00 eV/atom" in found["why"]
    wire = Atoms("C4", [[0, 0, 1.3 * n] for n in range(4)], cell=[12, 12, 5.2], pbc=(False, False, True))
    (found,) = calc.predict([wire])
    assert "C in wires (training data: C in molecules, clusters and slabs)" in found["why"]


def test_structures_outside_the_domain_are_named_with_every_reason(tmp_path):
    paths = [tmp_path / name for name in ("slab.traj", "one.xyz", "wire.traj")]
    slab = fcc111("Cu", (2, 2, 3), a=3.63, vacuum=8.0)
    wire = slab.copy()
    wire.pbc = [True, False, False]
    for path, atoms in zip(paths, (slab, Atoms("Cu"), wire), strict=True):
        write(path, atoms)
    for command in ("predict", "relax"):
        result = CliRunner().invoke(main, [command, "-m", "metals-s", *map(str, paths)])
        assert result.exit_code == 3
        lines = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
        assert sorted(line.split(": ")[1] for line in lines) == sorted(map(str, paths[1:]))
        assert all("outside the domain of the model: Cu in " in line for line in lines)
        assert "results[" not in result.output and "outside the domain" not in result.stdout
    assert CliRunner().invoke(main, ["predict", "-q", "-m", "metals-s", str(paths[1])]).stderr == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slab.traj@3", "slab.traj has 1 structure; indices begin with 0"),
        ("empty.xyz", "the file is empty"),
        ("ghost.traj", "ghost.traj: no element is given for atom 1 (symbol X)"),
        ("uranium.traj", "uranium.traj: the model was never trained on U"),
    ],
)
def test_unusable_structures_are_named(tmp_path, name, expected):
    write(tmp_path / "slab.traj", fcc111("Cu", (1, 1, 3), vacuum=8.0))
    (tmp_path / "empty.xyz").write_text("")
    write(tmp_path / "ghost.traj", Atoms("CuX", [[0, 0, 0], [0, 0, 2]]))
    write(tmp_path / "uranium.traj", Atoms("CuU", [[0, 0, 0], [0, 0, 2.5]]))
    result = CliRunner().invoke(main, ["predict", "-m", "metals-s", str(tmp_path / "slab.traj"), str(tmp_path / name)])
    assert result.exit_code == 2 and expected in result.stderr


def test_a_stopped_run_tells_its_time(slab, model):
    result = CliRunner().invoke(main, ["md", "-m", model, str(slab), "--timestep", "100", "--steps", "50"])
    assert result.exit_code != 0 and "stopped after 10 steps" in result.stderr
    assert "10 (1.000 ps)" in result.stdout and "the trajectory is not saved" in result.stderr


def test_evaluate_notices_energies_of_another_zero(tmp_path):
    structures = []
    for seed in range(3):
        structures.append(fcc111("Cu", (1, 1, 3), vacuum=6.0))
        structures[-1].info = {}
        structures[-1].rattle(0.03, seed=seed)
        structures[-1].calc = EMT()
        structures[-1].get_forces()
    write(tmp_path / "emt.extxyz", structures)

    def warned(*more):
        arguments = ["evaluate", "-m", "metals-s", str(tmp_path / "emt.extxyz"), "--symmetry", "0", *more]
        return "--align fits one offset per element" in CliRunner().invoke(main, arguments).stderr

    assert warned() and not warned("--align")
