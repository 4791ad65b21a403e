from __future__ import annotations

from torch import nn

from hookbus_sync.tensor_sync import get_norm_states


def test_state_of_normalization_layers_has_names_of_the_state_dict() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Sequential(nn.GroupNorm(1, 2)))

    assert list(get_norm_states(model)) == [
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
        "2.0.weight",
        "2.0.bias",
    ]
    assert get_norm_states(model).keys() <= model.state_dict().keys()
    assert list(get_norm_states(nn.LayerNorm(2))) == ["weight", "bias"]


def test_model_without_normalization_layers_has_an_empty_state() -> None:
    assert get_norm_states(nn.Linear(1, 1)) == {}
