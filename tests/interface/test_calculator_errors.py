"""Every mistake gets a message that says what came, what was expected and what to do."""

import warnings

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.calculators.calculator import CalculationFailed

from faenet_calc import FAENetCalculator, build_potential
from faenet_calc.errors import InputError

SMALL = {"hidden_channels": 64, "filters": 32, "interactions": 1, "gaussians": 16, "cutoff": 4.0}


@pytest.fixture(scope="module")
def potential():
    return build_potential("modern-s", dtype="float64", **SMALL)


@pytest.mark.parametrize(
    ("keyword", "answer"),
    [
        ("default_dtype", "use dtype="),
        ("model_paths", "use checkpoint="),
        ("model_path", "use checkpoint="),
        ("model", "use checkpoint="),
        ("checkpoint_path", "use checkpoint="),
        ("use_device", "use device="),
        ("cpu", "use device='cpu'"),
        ("model_type", "not needed, the checkpoint knows"),
        ("dispersion", "SumCalculator"),
        ("enable_cueq", "not needed"),
        ("trainer", "not needed, no trainer"),
        ("kpts", "not needed, a potential has no k-points"),
        ("charge", "not needed, charge and spin are no inputs"),
        ("cutoff", "part of the checkpoint"),
        ("devise", "did you mean device="),
        ("quantum", "known are checkpoint, device"),
    ],
)
def test_foreign_keywords_are_answered(potential, keyword, answer):
    with pytest.raises(TypeError, match=f"{keyword}=: ") as error:
        FAENetCalculator(potential, **{keyword: True})
    assert answer in str(error.value)


def test_all_foreign_keywords_are_answered_at_once(potential):
    with pytest.raises(TypeError) as error:
        FAENetCalculator(potential, default_dtype="float64", use_device="cpu")
    assert "use dtype=" in str(error.value) and "use device=" in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"forces": "both"}, "forces='both', expected one of 'auto', 'gradient', 'direct'"),
        ({"frames": "some"}, "frames='some', expected one of 'auto', 'one', 'pair', 'all', 'exact', 'stochastic'"),
        ({"dtype": "float16"}, "dtype='float16', expected 'float32' or 'float64'"),
        ({"skin": -1}, "skin=-1, expected a length"),
        ({"remove_net_force": "yes"}, "remove_net_force='yes', expected one of 'auto', True, False"),
        ({"on_unknown_element": "panic"}, "on_unknown_element='panic', expected one of"),
        ({"on_isolated_atoms": "panic"}, "on_isolated_atoms='panic', expected one of"),
        ({"device": "gpu9"}, "device='gpu9' is not a torch device"),
        ({"forces": "direct"}, "has no force decoder; use forces='gradient'"),
    ],
)
def test_bad_settings(potential, settings, message):
    with pytest.raises(InputError, match=message):
        FAENetCalculator(potential, **settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_asked_for_but_absent(potential):
    with pytest.raises(InputError, match=r"device='cuda', but this machine or this torch has no cuda; use 'cpu'"):
        FAENetCalculator(potential, device="cuda")


def test_bad_tags_word():
    needs = build_potential("modern-s", **SMALL, atoms={"tag_channels": 4})
    with pytest.raises(InputError, match='tags=\'guess\', expected "auto", "atoms", an array or a function'):
        FAENetCalculator(needs, tags="guess")
    with pytest.raises(InputError, match="expected one tag for each of the 1 atoms"):
        FAENetCalculator(needs, tags=[0, 1]).get_property("energy", bulk("Cu"))


def _structure(kind):
    atoms = fcc111("Cu", (2, 2, 2), vacuum=6.0, periodic=True)
    if kind == "nan":
        atoms.positions[3, 1] = np.nan
    elif kind == "overlap":
        atoms.positions[1] = atoms.positions[0] + 0.1
    elif kind == "cell":
        atoms.cell[2] = 0.0
    elif kind == "bad cell":
        atoms.cell[0, 0] = np.inf
    elif kind == "empty":
        atoms = Atoms()
    return atoms


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("nan", r"NaN or infinite positions of atom 3 \(Cu\)"),
        ("overlap", r"overlapping atoms, closer than 0.3 Å: Cu0–Cu1"),
        ("cell", "singular cell .* axis 2 has length 0"),
        ("bad cell", "NaN or infinite numbers in the cell"),
        ("empty", "the structure has no atoms"),
    ],
)
def test_bad_structures(potential, kind, message):
    calc, atoms = FAENetCalculator(potential), _structure(kind)
    for _ in range(2):  # a failed call must not be remembered as a good one
        with pytest.raises(InputError, match=message):
            calc.calculate(atoms, ["forces"])
    assert calc.results == {}
    with pytest.raises(InputError, match="structure 1: "):
        calc.predict([bulk("Cu"), atoms])


def test_unknown_elements(potential):
    few = build_potential("modern-s", **SMALL, supported_elements=(1, 8, 29))
    calc = FAENetCalculator(few)
    atoms = bulk("NaCl", "rocksalt", a=5.6)
    for _ in range(2):
        with pytest.raises(
            InputError, match=r"unknown elements Cl, Na at atom indices \[0, 1\]; supported are H, O, Cu"
        ):
            atoms.calc = calc
            atoms.get_potential_energy()
    assert calc.supported_elements == ("H", "O", "Cu")


def test_untrained_elements():
    trained = build_potential("modern-s", **SMALL, trained_elements=(29,))
    atoms = bulk("Pd")
    calc = FAENetCalculator(trained)
    for _ in range(2):  # a failed check must not be remembered as a passed one
        with pytest.raises(InputError, match=r"never trained on Pd \(trained on Cu\).*on_unknown_element='warn'"):
            calc.get_property("energy", atoms)
    with pytest.raises(InputError, match="structure 1: the model was never trained on Pd"):
        calc.predict([bulk("Cu"), atoms])
    assert np.isfinite(calc.get_property("energy", bulk("Cu")))
    warns = FAENetCalculator(trained, on_unknown_element="warn")
    with pytest.warns(UserWarning, match=r"never trained on Pd \(trained on Cu\)"):
        warns.get_property("energy", atoms)
    warns.get_property("energy", bulk("Cu"))
    warns.get_property("energy", atoms)  # warned once: a second warning would be an error here
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FAENetCalculator(trained, on_unknown_element="ignore").get_property("energy", atoms)


def test_isolated_atoms(potential):
    atoms = Atoms("Cu3", positions=[[0, 0, 0], [2.5, 0, 0], [0, 0, 30]])
    calc = FAENetCalculator(potential)
    with pytest.warns(
        UserWarning, match=r"1 atom has no neighbor within 4.0 Å, and no force acts on it \(indices \[2\]\)"
    ):
        calc.get_property("energy", atoms)
    atoms.positions[2, 0] += 1.0
    calc.get_property("energy", atoms)  # said once
    with pytest.raises(InputError, match="on_isolated_atoms='warn' or 'ignore'"):
        FAENetCalculator(potential, on_isolated_atoms="error").get_property("energy", atoms)
    FAENetCalculator(potential, on_isolated_atoms="ignore").get_property("energy", atoms)
    FAENetCalculator(potential, on_isolated_atoms="error").get_property("energy", Atoms("Cu"))


def test_not_a_number_out_of_the_model():
    broken = build_potential("modern-s", **SMALL)
    with torch.no_grad():
        next(broken.model.output_block.parameters()).fill_(float("nan"))
    atoms = molecule("H2O")
    atoms.calc = FAENetCalculator(broken)
    with pytest.raises(
        CalculationFailed, match=r"NaN or infinite energy.*forces of 3 atoms: 0 \(O\).*check_finite=False"
    ):
        atoms.get_forces()
    with pytest.raises(CalculationFailed, match="structure 0: the model gave NaN"):
        atoms.calc.predict([atoms])
    atoms.calc = FAENetCalculator(broken, check_finite=False)
    assert np.isnan(atoms.get_potential_energy())


def test_bad_batch_size(potential):
    for size in (0, "all", True):
        with pytest.raises(InputError, match="expected 'auto' or a number of structures"):
            FAENetCalculator(potential).predict([bulk("Cu")], batch_size=size)
