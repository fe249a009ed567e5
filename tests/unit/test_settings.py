import json

import pytest

from faenet_calc.errors import InputError
from faenet_calc.network.config import ModelConfig
from faenet_calc.potential.config import PotentialConfig
from faenet_calc.potential.presets import PRESETS, preset
from faenet_calc.settings import from_mapping, to_mapping


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json(name):
    config = preset(name)
    assert from_mapping(PotentialConfig, json.loads(json.dumps(to_mapping(config)))) == config


def test_unknown_preset_lists_the_known():
    with pytest.raises(InputError, match=r"modern-xl.*modern-s, modern-m"):
        preset("modern-xl")


def test_all_mistakes_are_reported_at_once_with_the_nearest_word():
    mapping = {"model": {"hiden_channels": 3, "cutoff": "far", "message": "bas"}, "forces": "direkt"}
    with pytest.raises(InputError) as caught:
        from_mapping(PotentialConfig, mapping, source="x.yaml")
    message = str(caught.value)
    assert "x.yaml: 4 mistakes" in message
    assert "did you mean 'hidden_channels'" in message
    assert "model.cutoff = 'far' (str), expected float" in message
    assert "did you mean 'base'" in message
    assert "did you mean 'direct'" in message


def test_true_is_not_a_number_and_a_whole_number_is_a_float():
    with pytest.raises(InputError, match="interactions = True"):
        from_mapping(ModelConfig, {"interactions": True})
    assert from_mapping(ModelConfig, {"cutoff": 6}).cutoff == 6.0


def test_direct_forces_need_a_decoder():
    with pytest.raises(InputError, match=r"needs model\.decoder"):
        from_mapping(PotentialConfig, {"forces": "direct"})
