"""What a checkpoint says about itself comes from the data it was trained on; what is left out of a set is said."""

import pytest
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write
from click.testing import CliRunner
from small_set import SMALL, write_small_set

from faenet_calc import FAENetCalculator, build_potential
from faenet_calc.cli import main
from faenet_calc.data.dataset import open_dataset
from faenet_calc.data.splits import uncovered
from faenet_calc.errors import InputError
from faenet_calc.potential.checkpoint import load_potential, read_metadata, save_potential
from faenet_calc.training.config_file import read_config
from faenet_calc.training.loop import train

SHAPE = {"hidden_channels": 48, "filters": 16, "interactions": 2, "gaussians": 12, "cutoff": 4.0}


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A model of PBE energies of Cu, Pd, Pt and O."""
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "cache"))
    energy = {"kind": "total", "reference": "pseudo-atoms", "level_of_theory": "PBE"}
    potential = build_potential("modern-s", name="metals", energy=energy, trained_elements=(8, 29, 46, 78), **SHAPE)
    return save_potential(potential, tmp_path / "base.safetensors")


def finetune(base, data, folder, *more):
    given = [f"data.train={[str(data)]}", f"run.out_dir={folder}", *SMALL, "run.max_epochs=1", "optim.batch_size=6"]
    return train(read_config("", [*given, f"finetune.checkpoint={base}", *more]))


def labelled(path, theory=None, shift=0.0, only=None):
    structures = read(write_small_set(path), ":")
    kept = [atoms for atoms in structures if only is None or only in atoms.symbols]
    for atoms in kept:
        results = {**atoms.calc.results, "energy": atoms.calc.results["energy"] + shift * len(atoms)}
        atoms.calc = SinglePointCalculator(atoms, **results)
        if theory is not None:
            atoms.info["calculator"] = theory
    write(path, kept)
    return path


def test_a_fine_tuned_model_is_described_by_its_own_data(base, tmp_path):
    result = finetune(base, labelled(tmp_path / "emt.extxyz", theory="EMT"), tmp_path / "run")
    tuned = load_potential(result.checkpoint, device="cpu").config
    assert tuned.name == "metals (fine-tuned)"
    assert (tuned.energy.level_of_theory, tuned.energy.reference) == ("EMT", "unknown")
    assert tuned.trained_elements == (8, 29, 46)
    assert read_metadata(result.checkpoint)["extra"]["finetuned_from"]["sha256"] == read_metadata(base)["sha256"]
    with pytest.raises(InputError, match="must predict the same energy"):
        FAENetCalculator([str(base), str(result.checkpoint)], device="cpu")


def test_data_of_the_same_level_of_theory_keep_the_reference_and_the_elements(base, tmp_path):
    data = labelled(tmp_path / "pbe.extxyz", theory="PBE", only="Pd")
    tuned = load_potential(finetune(base, data, tmp_path / "run").checkpoint, device="cpu").config
    assert (tuned.energy.level_of_theory, tuned.energy.reference) == ("PBE", "pseudo-atoms")
    assert tuned.trained_elements == (8, 29, 46, 78)


def test_stated_descriptions_hold(base, tmp_path):
    stated = ("model.name=emt", "energy.level_of_theory=EMT", "energy.reference=bulk")
    data = labelled(tmp_path / "data.extxyz", theory="something else")
    tuned = load_potential(finetune(base, data, tmp_path / "run", *stated).checkpoint, device="cpu").config
    assert (tuned.name, tuned.energy.level_of_theory, tuned.energy.reference) == ("emt", "EMT", "bulk")


def test_replay_of_other_energies_is_refused(base, tmp_path):
    new = labelled(tmp_path / "new.extxyz", theory="EMT")
    old = labelled(tmp_path / "old.extxyz", theory="PBE")
    with pytest.raises(InputError, match=r"mixes levels of theory.*PBE.*EMT"):
        finetune(base, new, tmp_path / "a", f"finetune.replay=[{old}]")
    # Settings that state the level of theory hold for both files.
    stated = ("energy.level_of_theory=PBE", "finetune.refit_references=false")
    assert finetune(base, new, tmp_path / "d", f"finetune.replay=[{old}]", *stated).checkpoint
    unnamed = labelled(tmp_path / "unnamed.extxyz")
    with pytest.raises(InputError, match=r"energy\.level_of_theory of the model and its data is 'PBE'.*'EMT'"):
        finetune(base, unnamed, tmp_path / "b", f"finetune.replay=[{unnamed}]", "energy.level_of_theory=EMT")
    moved = labelled(tmp_path / "moved.extxyz", shift=50.0)
    with pytest.raises(InputError, match=r"mixes energy references.*Cu \+"):
        finetune(base, moved, tmp_path / "c", f"finetune.replay=[{unnamed}]")


def test_forces_of_another_level_of_theory_can_be_replayed(base, tmp_path):
    new = labelled(tmp_path / "new.extxyz", theory="EMT", only="Cu")
    old = labelled(tmp_path / "old.extxyz", theory="PBE", shift=50.0)
    replay = (f"finetune.replay=[{old}]", "optim.batch_size=2", "finetune.refit_references=false")
    tuned = finetune(base, new, tmp_path / "a", *replay, "finetune.replay_energies=false")
    config = load_potential(tuned.checkpoint, device="cpu").config
    assert config.trained_elements == (8, 29)  # energies of Pd, which is replayed only, have another zero
    assert config.domain is not None and set(config.domain.closed_directions) == {"O", "Cu"}
    stated = "energy.level_of_theory=PBE"
    mixed = finetune(base, new, tmp_path / "b", *replay, stated)  # the control: energies that are 50 eV/atom away
    assert mixed.state.history[-1]["train_loss"] > 10 > 3 * tuned.state.history[-1]["train_loss"]


def test_replay_without_energies_and_forces_is_refused(base, tmp_path):
    new, old = labelled(tmp_path / "new.extxyz"), labelled(tmp_path / "old.extxyz")
    replay = (f"finetune.replay=[{old}]", "finetune.replay_energies=false")
    with pytest.raises(InputError, match="leaves nothing to learn"):
        finetune(base, new, tmp_path / "a", *replay, "loss.forces=0")


def test_what_a_set_lacks_is_said(tmp_path):
    path = write_small_set(tmp_path / "small.extxyz")
    dataset = open_dataset(path, cutoff=4.0, cache_dir=tmp_path / "cache")
    palladium, copper, oxygen = (
        [index for index, atoms in enumerate(read(path, ":")) if symbol in atoms.symbols]
        for symbol in ("Pd", "Cu", "O")
    )
    notes = uncovered({"train": (dataset, palladium), "val": (dataset, copper)})
    assert "the train set has no element Cu, which other sets have" in notes
    assert "the val set has no element Pd, which other sets have" in notes
    bare = [index for index in range(12) if index not in oxygen]
    notes = uncovered({"train": (dataset, range(12)), "test": (dataset, bare)})
    assert "the test set has no element O, which other sets have" in notes
    assert any("the test set has no structure of kind" in note for note in notes)
    assert uncovered({"train": (dataset, range(12)), "val": (dataset, range(12))}) == []


def test_the_split_command_says_what_a_set_lacks(tmp_path, monkeypatch):
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "cache"))
    path = write_small_set(tmp_path / "small.extxyz")
    arguments = ["data", "split", str(path), "-o", str(tmp_path / "sets"), "--by", "composition"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.stderr
    assert "set has no element" in result.stdout


@pytest.mark.parametrize("way", ["file", "set"])
def test_only_the_command_line_flag_trusts_pickles(tmp_path, way):
    config = tmp_path / "run.yaml"
    config.write_text("data: {train: [x.lmdb], trust_pickle: true}" if way == "file" else "data: {train: [x.lmdb]}")
    more = [] if way == "file" else ["--set", "data.trust_pickle=true"]
    result = CliRunner().invoke(main, ["train", str(config), *more])
    assert result.exit_code == 2 and "data.trust_pickle is not a setting" in result.stderr


def test_aliases_that_explode_are_refused(tmp_path):
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    for text, reason in (("\n".join(levels), "aliases are expanded"), ("[" * 5000, "is not YAML")):
        with pytest.raises(InputError, match=reason):
            read_config(text, source="bomb.yaml")
    assert read_config("optim: &o {lr: 0.1}\nstop: {min_lr: 0.1}").optim.lr == 0.1
