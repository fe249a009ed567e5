"""The YAML of a training run: strict, with lines, complete after resolving, the same after a round trip."""

import dataclasses

import pytest

from faenet_calc.errors import InputError
from faenet_calc.potential.presets import PRESETS
from faenet_calc.training.config import NormalizationSection
from faenet_calc.training.config_file import (
    config_from_mapping,
    config_to_mapping,
    dump_config,
    load_config,
    parse_setting,
    potential_config,
    read_config,
    resumed_config,
)
from faenet_calc.training.preset_hyperparameters import PRESET_HYPERPARAMETERS


def test_every_mistake_is_reported_with_its_line_and_the_nearest_word():
    text = "run:\n  sead: 3\n  max_epochs: many\noptim:\n  lr: 1e-3\n  schedule: cosin\nmodle:\n  preset: modern-s\n"
    with pytest.raises(InputError) as error:
        read_config(text, source="a.yaml")
    message = str(error.value)
    assert "a.yaml: 4 mistakes" in message
    assert "line 2: run.sead is not a setting (did you mean 'seed'?)" in message
    assert "line 3: run.max_epochs = 'many'" in message
    assert "line 6: optim.schedule = 'cosin'" in message and "did you mean 'cosine'" in message
    assert "line 7: modle is not a setting (did you mean 'model'?)" in message


def test_numbers_and_elements_are_read_as_yaml_1_2():
    config = read_config("optim: {lr: 1e-3}\nnormalization:\n  references: {No: -1.5, Y: 2}\n")
    assert config.optim.lr == 1e-3
    assert config.normalization.references == {"No": -1.5, "Y": 2}


def test_settings_on_the_command_line_win_and_are_named():
    config = read_config("optim:\n  lr: 1e-3\n", ["optim.lr=5e-4", "run.seed=7", "model.decoder.channels=32"])
    assert (config.optim.lr, config.run.seed) == (5e-4, 7)
    assert config.model.decoder is not None and config.model.decoder.channels == 32
    with pytest.raises(InputError, match=r"  - --set: optim.lr = 'fast'"):
        read_config("optim:\n  lr: 1e-3\n", ["optim.lr=fast"])


@pytest.mark.parametrize(
    ("setting", "value"),
    [("a.b=1e-3", 1e-3), ("a.b=true", True), ("a.b=[1, 2]", [1, 2]), ("a.b=x=y", "x=y"), ("a.b=", None)],
)
def test_a_setting_is_a_yaml_value(setting, value):
    assert parse_setting(setting) == ("a.b", value)


@pytest.mark.parametrize("setting", ["lr", "lr=1", "=3"])
def test_a_setting_needs_a_section(setting):
    with pytest.raises(InputError, match=r"section\.key=value"):
        parse_setting(setting)


def test_a_wrong_preset_is_named():
    with pytest.raises(InputError, match="paper-s2ef"):
        read_config("model: {preset: s2ef}")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_recipe_and_survives_a_round_trip(name):
    assert name in PRESET_HYPERPARAMETERS
    config = config_from_mapping({"model": {"preset": name}})
    assert read_config(dump_config(config)) == config
    assert config_from_mapping(config_to_mapping(config)) == config


def test_the_paper_s2ef_recipe_is_the_papers():
    config = config_from_mapping({"model": {"preset": "paper-s2ef"}})
    assert (config.loss.energy, config.loss.forces, config.loss.conservation) == (1.0, 100.0, 5.0)
    assert (config.optim.lr, config.optim.batch_size, config.optim.warmup_steps) == (2.5e-4, 192, 30000)
    assert (config.frames.kind, config.frames.training, config.graph.rewiring) == (
        "pca2d",
        "stochastic",
        "remove-tag-0",
    )
    assert config.loss.free_atoms_only and config.model.forces == "direct"


def test_a_file_changes_only_what_it_names():
    plain = config_from_mapping({"model": {"preset": "paper-qm9"}})
    changed = config_from_mapping({"model": {"preset": "paper-qm9", "cutoff": 4.0}, "frames": None})
    assert changed.model.cutoff == 4.0
    assert dataclasses.replace(changed, model=plain.model) == plain


def test_the_potential_gets_the_sections():
    config = read_config("model: {cutoff: 4.5, forces: direct}\nframes: {kind: none}\nloss: {free_atoms_only: true}\n")
    potential = potential_config(
        config, normalization=potential_normalization(), mean_neighbors=17.0, trained_elements=(29,)
    )
    assert (potential.model.cutoff, potential.model.mean_neighbors) == (4.5, 17.0)
    assert potential.model.decoder is not None and potential.forces == "direct"
    assert potential.frames.kind == "none" and potential.forces_on_free_atoms_only
    assert potential.trained_elements == (29,)


def potential_normalization():
    from faenet_calc.potential.config import NormalizationConfig

    return NormalizationConfig(scale=2.0)


def test_resuming_takes_the_new_run_section_and_refuses_other_changes():
    asked = read_config("run: {max_epochs: 5}\n")
    resolved = dataclasses.replace(asked, normalization=NormalizationSection(references={"Cu": 1.0}, scale=3.0))
    stored = {"asked": config_to_mapping(asked), "resolved": config_to_mapping(resolved)}
    again = resumed_config(read_config("run: {max_epochs: 9}\n"), stored, source="state.pt")
    assert again.run.max_epochs == 9
    assert again.normalization.scale == 3.0
    with pytest.raises(InputError, match=r"optim\.lr: 0\.005 → 0\.5"):
        resumed_config(read_config("run: {max_epochs: 5}\noptim: {lr: 0.5}\n"), stored, source="state.pt")


def test_every_example_is_read(repository):
    examples = sorted((repository / "examples" / "train").glob("*.yaml"))
    assert len(examples) >= 8
    presets = {load_config(path).model.preset for path in examples}
    assert {"modern-s", "modern-m", "paper-is2re", "paper-s2ef", "paper-qm7x", "paper-qm9"} <= presets


def test_fine_tuning_has_a_smaller_default_learning_rate():
    def lr(**sections):
        return config_from_mapping(sections).optim.lr

    start = {"checkpoint": "metals-m"}
    assert lr(finetune=start) == lr(finetune=start, model={"preset": "modern-m"}) == 1e-3
    assert lr(finetune={"checkpoint": None}) == lr() == 5e-3
    assert lr(finetune=start, optim={"lr": 4e-3}) == 4e-3
    assert lr(finetune=start, model={"preset": "paper-s2ef"}) == 2.5e-4


def test_trained_potentials_have_the_repulsion_of_their_preset():
    normalization = NormalizationSection()
    for preset, kind in (("modern-s", "zbl"), ("paper-s2ef", "none")):
        config = read_config(f"model: {{preset: {preset}}}\n")
        assert potential_config(config, normalization=normalization).repulsion.kind == kind
    config = read_config("repulsion: {crowding_start: 3.0, crowding_end: 4.0}\n")
    found = potential_config(config, normalization=normalization).repulsion
    assert (found.kind, found.outer, found.crowding_start, found.crowding_end) == ("zbl", 0.88, 3.0, 4.0)
    bare = read_config("repulsion: {kind: none}\n")
    assert potential_config(bare, normalization=normalization).repulsion.kind == "none"
    with pytest.raises(InputError, match="0 < inner < outer < 1"):
        potential_config(read_config("repulsion: {inner: 0.95}\n"), normalization=normalization)


def test_runs_that_were_started_without_a_section_can_be_resumed():
    asked = read_config("run: {max_epochs: 5}\n")
    then = {name: values for name, values in config_to_mapping(asked).items() if name != "repulsion"}
    resumed_config(asked, {"asked": then, "resolved": then}, source="state.pt")
    with pytest.raises(InputError, match=r"repulsion.outer: None → 0.8"):
        changed = read_config("repulsion: {outer: 0.8}\n")
        resumed_config(changed, {"asked": then, "resolved": then}, source="state.pt")
