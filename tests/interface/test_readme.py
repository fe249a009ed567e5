"""What the README shows must work: its code and commands run in order, its files, targets and numbers exist."""

import json
import re
from pathlib import Path

import embed_card
import pytest
from ase.build import fcc111
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write
from doc_blocks import blocks_of, commands_of, run_command, run_python, unknown_words
from ruamel.yaml import YAML

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
# Training with the settings of the README takes minutes; the tests run one pass over the data of a smaller network.
SHORT = ["--set", "run.max_epochs=1", "--set", "run.time_limit_s=30", "--set", "run.report=false"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder of a user with labelled structures in dft.extxyz."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "cache"))
    structures = []
    for seed in range(20):
        atoms = fcc111("Cu", (1, 1, 3), vacuum=6.0)
        atoms.info = {"slab": seed % 10}
        atoms.rattle(0.05, seed=seed)
        atoms.calc = EMT()
        atoms.calc = SinglePointCalculator(atoms, energy=atoms.get_potential_energy(), forces=atoms.get_forces())
        structures.append(atoms)
    write("dft.extxyz", structures)
    return tmp_path


def _command_blocks():
    return [block for _, block in blocks_of(README, ("",)) if commands_of(block)]


def test_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_python_and_first_commands_run(folder, capsys):
    ((_, block),) = blocks_of(README, ("python",))
    assert len(block.splitlines()) <= 10
    run_python(block, "README.md", {})
    assert "converged: True" in capsys.readouterr().out
    for words in commands_of(_command_blocks()[0]):
        run_command(words)
    assert (folder / "md.traj").stat().st_size > 0


@pytest.mark.slow
def test_other_commands_run(folder):
    for block in _command_blocks()[1:]:
        for words in commands_of(block):
            run_command([*words, *(SHORT if words[0] == "train" else [])])
    for name in ("screening/report.html", "runs/mine/best.safetensors", "report.html", "runs/tuned/best.safetensors"):
        assert (folder / name).stat().st_size > 0


def test_commands_and_options_exist():
    commands = [words for block in _command_blocks() for words in commands_of(block)]
    assert len(commands) >= 8
    assert {tuple(words): unknown_words(words) for words in commands if unknown_words(words)} == {}


def test_every_block_is_code_or_known_commands():
    for kind, block in blocks_of(README, ("", "python", "bash", "console")):
        lines = block.splitlines()
        assert kind == "python" or all(line.startswith(("faenet-calc ", "make ")) for line in lines), block


def test_files_and_targets_exist(repository):
    makefile = (repository / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)$", README, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile, target
    benchmarks = re.findall(r"`(?:python )?(?:benchmarks/)?(\w+\.py)", README)
    assert len(benchmarks) > 5
    for name in benchmarks:
        assert (repository / "benchmarks" / name).exists(), name
    for path in re.findall(r"\]\((?!https?:)([^)]*)\)", README):
        assert (repository / path).exists(), path


def test_errors_are_those_of_the_cards(repository):
    for name, line in re.findall(r"^\| \[`([\w-]+)`\]\(.*?\)(.*)$", README, flags=re.MULTILINE):
        card = YAML(typ="safe").load(repository / "pretrained" / name / "card.yaml")
        for key in ("energy (meV/atom)", "forces (meV/Å)"):
            assert str(card["errors"][key]) in line, (name, key, card["errors"])
    for name in ("catalysis-m", "catalysis-s", "metals-m", "metals-s", "metals-direct"):
        errors = embed_card.model_card(name)["measured"]["dft_adsorption"]["DFT geometry"]["all"]
        line = next(line for line in README.splitlines() if line.startswith(f"| [`{name}`]"))
        assert f"| {errors['mae_eV']:.3f} eV (adsorption energies) |" in line
        assert f"{errors['pairs']} RPBE adsorption energies" in README


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("nequix-oam-1", "has {} eV"),
        ("MatterSim-v1-5M", "MatterSim v1 5M {}"),
        ("CHGNet-0.3.0", "CHGNet 0.3.0 {}"),
        ("SevenNet-0", "SevenNet-0 {}"),
    ],
)
def test_errors_of_other_potentials_are_those_of_the_results(repository, file, words):
    lines = (repository / f"benchmarks/results/{file}-dft_adsorption.jsonl").read_text().splitlines()
    (row,) = (
        row
        for row in map(json.loads, lines)
        if (row["row"], row.get("case"), row.get("geometry")) == ("group", "all", "DFT")
    )
    assert words.format(f"{row['mae_eV']:.3f}") in " ".join(README.split())


def test_times_are_those_of_the_results(repository):
    """Within 15 %, which allows for noise between runs of the benchmark."""
    rows = [json.loads(line) for line in (repository / "benchmarks/results/speed.jsonl").read_text().splitlines()]
    times = {(row["case"], row["atoms"]): row["value"] for row in rows if row["metric"] == "energy and forces"}
    found = re.findall(r"^\| `((?:catalysis|metals)-[sm])` \| ([\d./ ]+) \| ([\d./ ]+) \|", README, flags=re.MULTILINE)
    measured = [row for row in found if (f"{row[0]}, frames=pair", 40) in times]
    assert {"catalysis-m", "metals-m"} <= {model for model, *_ in measured}
    for model, *columns in measured:
        for atoms, column in zip((40, 200), columns, strict=True):
            expected = [times[f"{model}, frames={frames}", atoms] for frames in ("pair", "one", "all")]
            assert [float(word) for word in column.split("/")] == pytest.approx(expected, rel=0.15)


def test_times_of_other_potentials_are_those_of_the_results(repository):
    lines = (repository / "benchmarks/results/speed.jsonl").read_text().splitlines()
    times = {(row["case"], row["atoms"]): row["value"] for row in map(json.loads, lines)}
    text = " ".join(README.split())
    chgnet, sevennet = (f"{times[name, 40]:.0f}" for name in ("CHGNet", "SevenNet-0"))
    assert f"CHGNet 0.3.0 took {chgnet} ms and SevenNet-0 {sevennet} ms for 40 atoms" in text
    nep, small = (
        [times[name, atoms] for atoms in (40, 200)] for name in ("NEP (untrained)", "catalysis-s, frames=pair")
    )
    assert f"NEP with random weights took {nep[0]:.1f} ms for 40 and {nep[1]:.1f} ms for 200 atoms" in text
    assert small == pytest.approx(nep, rel=0.2), "as long as catalysis-s"


def test_differences_between_frame_modes_are_those_of_the_results(repository):
    lines = (repository / "benchmarks/results/metals-frame_modes.jsonl").read_text().splitlines()
    differences = {(row["model"], row["frames"]): row["forces_from_all"] for row in map(json.loads, lines)}
    pair, one = ([differences[model, frames] for model in ("metals-m", "metals-s")] for frames in ("pair", "one"))
    assert f"by {pair[0]:.1f} (`metals-m`) and {pair[1]:.1f} meV/Å (`metals-s`)" in README
    assert f"by {one[0]:.0f} and {one[1]:.0f} meV/Å" in README
