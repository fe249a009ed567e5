"""Every example runs in its quick mode, prints what it promises and leaves its files; every YAML can be read."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ase.build import add_adsorbate, fcc111
from ase.calculators.emt import EMT
from ase.calculators.espresso import EspressoProfile
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write
from doc_blocks import blocks_of

from faenet_calc.labelling import load_recipe
from faenet_calc.labelling.calculators import build_calculator
from faenet_calc.labelling.recipe import CalculatorConfig
from faenet_calc.settings import from_mapping, load_yaml, plain
from faenet_calc.training.config_file import load_config

REPOSITORY = Path(__file__).parents[2]
PYTHON = sorted(path.relative_to(REPOSITORY / "examples").as_posix() for path in REPOSITORY.glob("examples/**/*.py"))
SHELL = sorted(path.relative_to(REPOSITORY / "examples").as_posix() for path in REPOSITORY.glob("examples/**/*.sh"))
YAML = sorted([*REPOSITORY.glob("examples/**/*.y*ml"), *REPOSITORY.glob("pretrained/*/train*.yaml")])

# Example → (words in its output, files it leaves). An example that is not named here fails.
EXAMPLES = {
    "single_point.py": (["eV/Å", "Cu(111)", "stress"], ["single_point.txt"]),
    "relax_co_cu111.py": (
        ["top", "bridge", "fcc", "hcp", "E_ads", "gas reference: E(CO)", "most stable site"],
        ["co_cu111.png", "co_cu111/report.html", "co_cu111/results.csv"],
    ),
    "adsorption_sites.py": (["ASE", "pymatgen", "ontop", "hollow", "E_ads"], ["adsorption_sites.extxyz"]),
    "neb_diffusion.py": (["barrier", "hcp - fcc"], ["neb_diffusion.png"]),
    "md_rdf.py": (["temperature", "first peak"], ["rdf.png", "rdf.txt", "md.traj"]),
    "vibrations.py": (["cm-1", "free energy of adsorption"], []),
    "equation_of_state.py": (["lattice constant", "bulk modulus"], ["equation_of_state.png"]),
    "frame_averaging.py": (["frame averaged: energy changes by", "bare network", "force MAE"], ["edge_network.pt"]),
    "frame_averaging_models.py": (
        ["SchNet: changes by", "transformer: changes by"],
        ["frame_averaging_models.txt"],
    ),
    "uncertainty.py": (["spread over frames", "committee"], ["uncertainty.txt"]),
    "import_upstream.py": (["converted", "as it is", "direct"], ["imported.safetensors"]),
    "active_learning.py": (
        ["MD steps until unsure"],
        ["first.extxyz", "2/labels.extxyz", "2/member-1/best.safetensors"],
    ),
}
TINY = (
    "run.max_epochs=2", "model.hidden_channels=48", "model.filters=16", "model.interactions=1", "model.gaussians=8",
    "model.cutoff=4.0", "run.tensorboard=false",
)  # fmt: skip
EPOCHS = "run.max_epochs=2"
# Script → (arguments with DATA and OUT to be replaced, words in its output, files it leaves).
SCRIPTS = {
    "train/from_scratch.sh": (
        ["DATA", "OUT", *(f"--set={setting}" for setting in TINY)],
        ["16 structures", "test:", "best.safetensors"],
        ["best.safetensors", "relaxed.extxyz", "report.html"],
    ),
    "train/finetune.sh": (
        ["copper-s", "DATA", "OUT", f"--set={EPOCHS}", "--set=run.report=false"],
        ["force MAE", "parameters are frozen"],
        ["best.safetensors"],
    ),
    "train/torchrun.sh": (
        ["DATA", "OUT", "--json", *(f"--set={setting}" for setting in TINY)],
        ['"finished": "epochs"'],
        ["best.safetensors", "steps.csv"],
    ),
    "train/slurm.sh": ([], ["preset: modern-m", "resubmitted"], []),
}


@pytest.mark.parametrize("name", PYTHON)
def test_every_example_is_tested(name):
    assert name in EXAMPLES


# pymatgen calls spglib in a way that spglib has deprecated.
@pytest.mark.filterwarnings("ignore:Set OLD_ERROR_HANDLING:DeprecationWarning")
# The imported model deletes sub-surface atoms, and says so.
@pytest.mark.filterwarnings("ignore:this model deletes sub-surface atoms:UserWarning")
@pytest.mark.parametrize("name", PYTHON)
def test_example(repository, tmp_path, monkeypatch, capfd, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(repository))
    monkeypatch.setattr(sys, "argv", [name, "--quick", "--out", str(tmp_path / "out")])
    runpy.run_path(str(repository / "examples" / name), run_name="__main__")
    printed = capfd.readouterr().out
    words, files = EXAMPLES[name]
    for word in words:
        assert word in printed, printed
    assert "nan" not in printed.lower().split(), printed
    for file in files:
        assert (tmp_path / "out" / file).stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "files outside of --out"
    if name == "active_learning.py":
        _learnt(printed)


def _learnt(table):
    """Fine-tuning lowers the errors on what MD met, and what MD meets next is better known than what it met first."""
    rows = [[float(word) for word in line.split()] for line in table.splitlines() if re.match(r" +\d+ ", line)]
    assert [row[0] for row in rows] == [0, 1, 2]
    before, after = [row[3] for row in rows], [row[4] for row in rows]
    assert sum(after) < 0.8 * sum(before), table
    assert before[-1] < before[0] or rows[-1][1] > rows[0][1], table


def test_the_judge_of_active_learning_notices_a_model_that_does_not_learn():
    with pytest.raises(AssertionError):
        _learnt("\n".join(f"{number:>10} {20 - number:>23} 12 {150 + number:>36} {150:>19}" for number in range(3)))


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Rattled slabs with EMT labels."""
    structures = []
    for seed in range(16):
        atoms = fcc111("Cu", (1, 2, 3), vacuum=6.0, periodic=True)
        add_adsorbate(atoms, "O", 1.3, "fcc")
        atoms.info = {"slab": seed % 8}
        atoms.rattle(0.05, seed=seed)
        atoms.calc = EMT()
        atoms.calc = SinglePointCalculator(atoms, energy=atoms.get_potential_energy(), forces=atoms.get_forces())
        structures.append(atoms)
    path = tmp_path_factory.mktemp("data") / "slabs.extxyz"
    write(path, structures)
    return path


# Stand-ins for a queue: one node, jobs run at once, and instead of training the settings are printed. The options of
# torchrun are read by its own parser.
QUEUE = {
    "scontrol": "#!/bin/sh\necho localhost\n",
    "srun": '#!/bin/sh\nexec "$@"\n',
    "sbatch": '#!/bin/sh\necho resubmitted "$@"\n',
    "torchrun": f"""#!{sys.executable}
import subprocess, sys
from torch.distributed.run import parse_args
found = parse_args(sys.argv[1:])
assert found.module and found.rdzv_backend == "c10d"
command = ["{sys.executable}", "-m", found.training_script, *found.training_script_args, "--dry-run"]
print(subprocess.check_output(command, text=True))
print('{{"finished": "interrupted"}}')
""",
}


@pytest.mark.parametrize("name", SHELL)
def test_script(repository, tmp_path, labelled, name):
    assert name in SCRIPTS
    words, expected, files = SCRIPTS[name]
    path = [str(Path(sys.executable).parent), os.environ["PATH"]]
    if name == "train/slurm.sh":
        (tmp_path / "queue").mkdir()
        for command, text in QUEUE.items():
            (tmp_path / "queue" / command).write_text(text)
            (tmp_path / "queue" / command).chmod(0o755)
        path.insert(0, str(tmp_path / "queue"))
        (tmp_path / "examples").symlink_to(repository / "examples")
    environment = {
        **os.environ, "PATH": ":".join(path), "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1",
        "FAENET_CALC_CACHE": str(tmp_path / "cache"), "SLURM_JOB_NODELIST": "localhost", "SLURM_NNODES": "1",
        "SLURM_JOB_ID": "1",
    }  # fmt: skip
    given = [{"DATA": str(labelled), "OUT": str(tmp_path / "out")}.get(word, word) for word in words]
    script = str(repository / "examples" / name)
    done = subprocess.run(
        ["bash", script, *given], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    for word in expected:
        assert word in said, said
    for file in files:
        assert (tmp_path / "out" / file).stat().st_size > 0
    if name == "train/torchrun.sh":
        printed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert len(printed) == 1, "one process speaks"
        assert printed[0]["epochs"] == 2


def test_labels_of_the_dft_example_are_those_of_its_recipe():
    """The digest covers every setting except the number of tasks."""
    recipe = load_recipe(REPOSITORY / "examples/recipes/espresso.yaml")
    labels = read(REPOSITORY / "examples/data/rh-co-espresso.extxyz", ":")
    assert len(labels) == 25
    assert {atoms.info["recipe"] for atoms in labels} == {f"{recipe.name}:sha256-{recipe.digest()}"}
    assert {atoms.info["calculator"] for atoms in labels} == {recipe.calculator.id}
    assert max(np.abs(atoms.get_forces().sum(axis=0)).max() for atoms in labels) < 0.1, "forces of DFT add up to zero"


def test_calculators_of_the_tutorial_fit_into_a_recipe():
    """The same file with another calculator: VASP can be built wherever ASE is."""
    text = (REPOSITORY / "docs/tutorials/active_learning.md").read_text(encoding="utf-8")
    recipe = load_recipe(REPOSITORY / "examples/recipes/espresso.yaml")
    found = [load_yaml(block, source="tutorial")["calculator"] for _, block in blocks_of(text, ("yaml",))]
    assert [each["factory"] for each in found] == ["ase.calculators.vasp.Vasp", "gpaw.GPAW"]
    vasp, gpaw = (replace(recipe, calculator=from_mapping(CalculatorConfig, plain(each))) for each in found)
    assert vasp.calculator == load_recipe(REPOSITORY / "examples/recipes/template.yaml").calculator
    calculator = build_calculator(vasp.calculator)
    assert (calculator.parameters["encut"], calculator.parameters["kpts"]) == (400, [3, 3, 1])
    assert gpaw.digest() != vasp.digest() != recipe.digest()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pw.x") is None, reason="Quantum ESPRESSO (pw.x) is not installed")
def test_quantum_espresso_labels_again_what_is_stored(tmp_path, monkeypatch):
    """One calculation with the recipe gives the stored energy and forces (other versions: within 0.05)."""
    recipe = load_recipe(REPOSITORY / "examples/recipes/espresso.yaml")
    stored = read(REPOSITORY / "examples/data/rh-co-espresso.extxyz@0")
    monkeypatch.chdir(tmp_path)
    profile = EspressoProfile(command="pw.x", pseudo_dir="/usr/share/espresso/pseudo")
    config = replace(recipe.calculator, kwargs={**recipe.calculator.kwargs, "profile": profile})
    atoms = stored.copy()
    atoms.calc = build_calculator(config)
    assert atoms.get_potential_energy() == pytest.approx(stored.get_potential_energy(), abs=0.05)
    assert atoms.get_forces() == pytest.approx(stored.get_forces(), abs=0.05)
    assert (tmp_path / "espresso" / "espresso.pwo").exists()


@pytest.mark.parametrize("path", YAML, ids=[str(path.relative_to(REPOSITORY)) for path in YAML])
def test_yaml_is_read(path):
    if path.parent.name == "recipes":
        assert load_recipe(path).tasks > 0
    else:
        assert load_config(path).data.train, "a configuration names its data"
