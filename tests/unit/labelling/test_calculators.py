"""Calculators of a recipe: which code is imported, and which model is recorded."""

import os
import sys
from dataclasses import replace

import pytest
from ase.calculators.lj import LennardJones
from ase.io import read
from click.testing import CliRunner
from small_recipe import recipe

from faenet_calc import build_potential
from faenet_calc.cli.data_generate import command
from faenet_calc.errors import InputError
from faenet_calc.files import sha256_of
from faenet_calc.labelling import generate
from faenet_calc.labelling.calculators import build_calculator, load_calculator
from faenet_calc.labelling.recipe import CalculatorConfig
from faenet_calc.potential.checkpoint import save_potential

SETTINGS = recipe().calculator


def soft(**kwargs):
    """A function instead of a class."""
    return LennardJones(**kwargs)


@pytest.mark.parametrize("factory", ["os.system", "subprocess.Popen", "builtins.exec", "metals_reference.X"])
def test_code_outside_the_trusted_packages_is_refused(factory):
    with pytest.raises(InputError, match=r"not one of ase, .*--trust-code"):
        build_calculator(replace(SETTINGS, factory=factory))


def test_an_untrusted_module_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "planted_module.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nX = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = replace(SETTINGS, factory="planted_module.X")
    with pytest.raises(InputError, match="planted_module"):
        build_calculator(config)
    assert not (tmp_path / "ran").exists() and "planted_module" not in sys.modules
    with pytest.raises(InputError, match="not callable"):
        build_calculator(config, trust_code=True)
    assert (tmp_path / "ran").exists(), "the test can fail"


@pytest.mark.parametrize(
    "factory", ["ase.build.molecule", "ase.Atoms", "ase.io.read", "ase.calculators.emt.parameters"]
)
def test_only_calculator_classes_are_called(factory):
    with pytest.raises(InputError, match="not an ASE Calculator class"):
        build_calculator(replace(SETTINGS, factory=factory))


@pytest.mark.parametrize("factory", ["ase.os.system", "ase.calculators.calculator.os.system", "ase.parallel.os.system"])
def test_modules_imported_by_a_trusted_package_are_not_part_of_it(factory):
    with pytest.raises(InputError, match="cannot be imported"):
        build_calculator(replace(SETTINGS, factory=factory, kwargs={}))


def test_shell_commands_in_kwargs_are_refused():
    config = replace(SETTINGS, factory="ase.calculators.vasp.Vasp", kwargs={"command": "touch ran"})
    with pytest.raises(InputError, match="contain command, which may run any program"):
        build_calculator(config)


def test_trusted_code_may_be_a_function():
    config = CalculatorConfig(factory=f"{__name__}.soft", kwargs={"sigma": 2.0})
    assert build_calculator(config, trust_code=True).parameters["sigma"] == 2.0


def test_calculators_that_cannot_be_built_are_named():
    with pytest.raises(InputError, match="cannot be imported"):
        build_calculator(replace(SETTINGS, factory="ase.calculators.emt.EMTT"))
    with pytest.raises(InputError, match="expected an ASE calculator"):
        build_calculator(replace(SETTINGS, factory="collections.Counter"), trust_code=True)
    with pytest.raises(InputError, match="does not accept kwargs"):
        build_calculator(replace(SETTINGS, kwargs={"colour": "red"}, factory="ase.build.molecule"), trust_code=True)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_command_refuses_a_recipe_that_names_os_system(tmp_path, workers):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "name: bad\ntasks: 1\ngas: [CO]\n"
        f"calculator: {{factory: os.system, kwargs: {{command: touch {tmp_path / 'ran'}}}}}\n"
    )
    result = CliRunner().invoke(command, [str(path), "-o", str(tmp_path / "out"), "-j", workers])
    assert result.exit_code != 0
    assert "os.system" in str(result.exception) and "--trust-code" in str(result.exception)
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def model(tmp_path):
    potential = build_potential("modern-s", trained_elements=[1, 6, 8])
    return save_potential(potential, tmp_path / "model.safetensors")


def explored(model, **changes):
    """A recipe of gas molecules explored by a model with random weights that it calls by a wrong name."""
    explorer = {
        "factory": "faenet_calc.FAENetCalculator",
        "id": "wrong-abcdef123456",
        "kwargs": {"checkpoint": str(model)},
    }
    sampling = {"relax_steps": 1, "md_steps": 1, "rattled": 1}
    return recipe(tasks=3, metals=[], alloys=[], heldout=[], sampling=sampling, explorer={**explorer, **changes})


def test_labels_record_the_model_that_was_loaded(tmp_path, model):
    done = generate(explored(model), tmp_path / "out")
    labels = read(done.file, ":")
    assert labels
    assert {atoms.info["explorer_sha256"] for atoms in labels} == {sha256_of(model)[:12]}
    assert "calculator_sha256" not in labels[0].info, "EMT has no model file"


def test_a_pinned_model_must_be_the_one_that_is_loaded(tmp_path, model):
    digest = sha256_of(model)
    generate(explored(model, sha256=digest[:12]), tmp_path / "right")
    other = ("0" if digest[0] != "0" else "1") + digest[1:]
    with pytest.raises(InputError, match=rf"loaded a model with sha256 {digest[:12]}.*the recipe pins {other[:12]}"):
        generate(explored(model, sha256=other), tmp_path / "wrong")
    with pytest.raises(InputError, match="no model file"):
        load_calculator(replace(SETTINGS, sha256=digest))
    with pytest.raises(InputError, match="hexadecimal"):
        explored(model, sha256="latest")


def test_a_run_is_not_resumed_with_another_model(tmp_path, model):
    generate(explored(model), tmp_path / "out")
    longer = replace(explored(model), tasks=5)
    save_potential(build_potential("modern-s", trained_elements=[1, 6, 8], seed=1), model)
    os.utime(model)
    before = (tmp_path / "out" / "labels.extxyz").read_bytes()
    with pytest.raises(InputError, match="was generated with model files"):
        generate(longer, tmp_path / "out")
    assert (tmp_path / "out" / "labels.extxyz").read_bytes() == before
