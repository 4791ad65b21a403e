import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from hookbus.errors import ConfigError, HookError
from hookbus_visualization.features import (
    SIDE,
    feature_maps,
    feature_pictures,
    layers_of,
    maps_of,
    pictures_of,
    watched,
)


def ramp(*shape):
    return torch.arange(float(np.prod(shape))).reshape(shape)


def small():
    """Two convolutions with known weights: the first doubles and negates, the second adds up."""
    model = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.ReLU(inplace=True), nn.Conv2d(2, 1, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([2.0, -1.0]).reshape(2, 1, 1, 1))
        model[2].weight.fill_(1.0)
    return model


class TestLayers:
    model = nn.ModuleDict({"back": nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Conv2d(1, 1, 1)), "head": nn.ReLU()})

    def test_are_the_convolutions_where_none_is_named(self):
        assert list(layers_of(self.model)) == ["back.0", "back.2"]

    def test_are_spread_over_a_deep_model(self):
        deep = nn.Sequential(*(nn.Conv2d(1, 1, 1) for _ in range(50)))
        assert list(layers_of(deep)) == ["0", "7", "14", "21", "28", "35", "42", "49"]

    @pytest.mark.parametrize(
        ("targets", "expected"),
        [
            (["head"], ["head"]),
            (["back.1", "back.0"], ["back.0", "back.1"]),
            (["back.?"], ["back.0", "back.1", "back.2"]),
            (["*0", "head"], ["back.0", "head"]),
        ],
    )
    def test_are_named_by_path_or_pattern_and_come_in_the_order_of_the_model(self, targets, expected):
        layers = layers_of(self.model, targets)
        assert layers == {path: self.model.get_submodule(path) for path in expected}
        assert list(layers) == expected

    def test_that_are_not_there_are_told_all_at_once_with_near_names(self):
        with pytest.raises(ConfigError) as error:
            layers_of(self.model, ["hed", "back.0", "zzz*"])
        assert error.value.problems == [
            "The model has no layer 'hed'. Did you mean 'head'?",
            "The model has no layer 'zzz*'. Available: back, back.0, back.1, back.2, head.",
        ]

    def test_are_all_innermost_ones_where_there_is_no_convolution(self):
        model = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(1, 1), nn.ReLU()))
        assert list(layers_of(model)) == ["0", "1.0", "1.1"]


class TestMaps:
    def test_are_the_first_channels(self):
        assert torch.equal(maps_of(ramp(5, 2, 3), 2), ramp(2, 2, 3))

    def test_of_a_volume_are_its_middle_slices(self):
        assert torch.equal(maps_of(ramp(2, 3, 2, 2), 2), torch.stack([ramp(2, 3, 2, 2)[0, 1], ramp(2, 3, 2, 2)[1, 1]]))

    @pytest.mark.parametrize(("shape", "expected"), [((4, 3), (1, 4, 3)), ((6,), (1, 1, 6)), ((), (1, 1, 1))])
    def test_of_fewer_dimensions_are_one_map(self, shape, expected):
        assert torch.equal(maps_of(torch.ones(shape), 16), torch.ones(expected))

    def test_that_are_large_are_averaged_down(self):
        checks = (ramp(2 * SIDE, 2 * SIDE) % 2)[None]
        assert torch.equal(maps_of(checks, 1), torch.full((1, SIDE, SIDE), 0.5))

    def test_keep_a_side_that_is_small_enough(self):
        assert maps_of(torch.ones(1, 4, 1000), 1).shape == (1, 4, SIDE)

    def test_are_copies_of_32_bits_that_pin_nothing(self):
        output = torch.ones(3, 2, 2, dtype=torch.bfloat16, requires_grad=True)
        maps = maps_of(output, 3)
        assert maps.dtype == torch.float32
        assert not maps.requires_grad
        whole = torch.zeros(3, 2, 2)
        assert maps_of(whole, 1).untyped_storage().nbytes() == 16
        kept = maps_of(whole, 3)
        whole.fill_(1.0)
        assert kept.sum() == 0


class TestFeatureMaps:
    def test_are_what_the_layers_make_of_the_first_sample(self):
        inputs = torch.tensor([1.0, -3.0, 7.0, 7.0]).reshape(2, 1, 1, 2)
        found = feature_maps(small(), inputs)
        assert {path: maps.tolist() for path, maps in found.items()} == {
            "0": [[[2.0, -6.0]], [[-1.0, 3.0]]],  # before the ReLU behind it changed them in place
            "2": [[[2.0, 3.0]]],
        }

    def test_are_of_as_many_channels_as_are_asked_for(self):
        assert feature_maps(small(), torch.ones(1, 1, 2, 2), count=1)["0"].shape == (1, 2, 2)

    @pytest.mark.parametrize(("sample", "expected"), [(1, [14.0]), (-1, [14.0]), (0, [2.0])])
    def test_are_of_any_sample(self, sample, expected):
        inputs = torch.tensor([1.0, 7.0]).reshape(2, 1, 1, 1)
        assert feature_maps(small(), inputs, count=1, sample=sample)["0"].flatten().tolist() == expected

    def test_look_into_what_a_layer_returns(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn, self.boxes, self.text = nn.LSTM(2, 3, batch_first=True), Boxes(), Text()

            def forward(self, x):
                self.text()
                self.boxes(x)
                return self.rnn(x)

        class Boxes(nn.Module):
            def forward(self, x):
                return {"none": None, "boxes": [x, x + 1]}

        class Text(nn.Module):
            def forward(self):
                return "no tensor"

        found = feature_maps(Model(), torch.ones(4, 5, 2), ["*"])
        assert {path: tuple(maps.shape) for path, maps in found.items()} == {"rnn": (1, 5, 3), "boxes": (1, 5, 2)}

    def test_leave_out_a_layer_that_is_not_used_or_has_no_samples(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.unused, self.reduced = nn.ReLU(), nn.ReLU(), nn.CrossEntropyLoss()

            def forward(self, x):
                return self.reduced(self.used(x), x)

        assert list(feature_maps(Model(), torch.ones(2, 3), ["*"])) == ["used"]

    @pytest.mark.parametrize(
        ("model", "names"), [(nn.Module(), r"\[\]"), (nn.ModuleDict({"a": nn.ReLU()}), r"\['a'\]")]
    )
    def test_are_asked_for_in_vain_where_no_layer_is_used(self, model, names):
        model.forward = lambda x: x
        with pytest.raises(HookError, match=rf"Nothing is drawn of layers {names}: not used"):
            feature_maps(model, torch.ones(1, 1))

    def test_are_those_of_the_last_call_of_a_layer(self):
        shared = nn.Linear(1, 1, bias=False)
        nn.init.constant_(shared.weight, 3.0)
        assert feature_maps(nn.Sequential(shared, shared), torch.ones(1, 1), ["0"])["0"].tolist() == [[[9.0]]]

    @pytest.mark.parametrize(
        ("model", "inputs"),
        [
            (nn.Bilinear(1, 1, 1), (torch.ones(1, 1), torch.ones(1, 1))),
            (nn.MultiheadAttention(1, 1), {name: torch.ones(1, 1, 1) for name in ("query", "key", "value")}),
        ],
    )
    def test_call_the_model_as_the_loop_does(self, model, inputs):
        assert list(feature_maps(Outer(model), inputs, ["inner"])) == ["inner"]

    def test_are_had_from_a_model_that_was_compiled_and_used(self):
        model = torch.compile(small(), backend="eager")
        model(torch.ones(1, 1, 1, 1))
        assert feature_maps(model, torch.ones(1, 1, 1, 1), ["0"])["0"].flatten().tolist() == [2.0, -1.0]

    def test_cause_no_new_compilation(self):
        compilations = []

        def backend(graph, inputs):
            compilations.append(graph)
            return graph.forward

        model = torch.compile(small(), backend=backend)
        model(torch.ones(1, 1, 1, 1))
        feature_maps(model, torch.ones(1, 1, 1, 1))
        model(torch.ones(1, 1, 1, 1))
        assert len(compilations) == 1

    def test_are_had_of_a_layer_that_is_compiled_by_itself(self):
        model = small()
        model[0] = torch.compile(model[0], backend="eager")
        model(torch.ones(1, 1, 1, 1))
        assert feature_maps(model, torch.ones(1, 1, 1, 1), ["0"])["0"].flatten().tolist() == [2.0, -1.0]

    def test_are_had_of_a_transformer_with_padding(self):
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
        padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
        inputs = {"src": torch.randn(2, 5, 8), "src_key_padding_mask": padding}
        found = feature_maps(encoder, inputs, ["layers.0.linear?"])
        shapes = {path: tuple(maps.shape) for path, maps in found.items()}
        assert shapes == {"layers.0.linear1": (1, 5, 16), "layers.0.linear2": (1, 5, 8)}

    def test_are_had_under_autocast(self):
        with torch.autocast("cpu", torch.bfloat16):
            maps = feature_maps(small(), torch.ones(1, 1, 1, 1))["0"]
        assert maps.dtype == torch.float32
        assert maps.flatten().tolist() == [2.0, -1.0]

    def test_are_had_in_inference_mode_of_a_model_that_changes_its_input(self):
        model = nn.Sequential(nn.ReLU(inplace=True), nn.ReLU(inplace=True))
        with torch.inference_mode():
            inputs = torch.tensor([[-1.0, 1.0]])
            assert feature_maps(model, inputs, ["1"])["1"].tolist() == [[[0.0, 1.0]]]
        assert inputs.tolist() == [[-1.0, 1.0]]


class TestWhatAModelShowsByItself:
    class Model(nn.Sequential):
        def visualize_features(self, x):
            assert not self.training
            return x + 1, {"second": -x}, "no tensor"

    def test_takes_the_place_of_layers(self):
        found = feature_maps(self.Model(nn.ReLU()), torch.ones(1, 1, 1, 2))
        assert {name: maps.tolist() for name, maps in found.items()} == {"0": [[[2.0, 2.0]]], "1": [[[-1.0, -1.0]]]}

    def test_is_not_asked_for_where_layers_are_named(self):
        assert list(feature_maps(self.Model(nn.Conv2d(1, 1, 1)), torch.ones(1, 1, 1, 2), ["0"])) == ["0"]

    def test_has_to_be_tensors(self):
        model = small()
        model.visualize_features = lambda _: {"loss": torch.ones(())}
        with pytest.raises(HookError, match=r"returned \{loss: Tensor of shape \(\)\}. Let it return tensors"):
            feature_maps(model, torch.ones(1, 1, 1, 1))


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


class TestWatching:
    def test_ends_with_the_context_and_spares_the_hooks_of_others(self):
        model, calls = small(), []
        model[0].register_forward_hook(lambda *_: calls.append(1))
        for _ in range(3):
            with watched(layers_of(model), 16):
                model(torch.ones(1, 1, 1, 1))
        assert [len(each._forward_hooks) for each in model] == [1, 0, 0]
        assert len(calls) == 3

    def test_ends_where_the_model_fails(self):
        model = small()
        with pytest.raises(RuntimeError, match="channels"), watched(layers_of(model), 16):
            model(torch.ones(1, 5, 1, 1))
        assert [len(each._forward_hooks) for each in model] == [0, 0, 0]

    def test_keeps_no_activation_alive(self):
        model, seen = small(), []
        model[0].register_forward_hook(lambda _, __, output: seen.append(weakref.ref(output)))
        maps = feature_maps(model, torch.ones(4, 1, 2, 2))
        gc.collect()
        assert seen[0]() is None
        assert maps["0"].shape == (2, 2, 2)


class TestPictures:
    def test_have_one_for_each_channel_stretched_over_all_colours(self):
        pictures = feature_pictures(small(), torch.tensor([[[[0.0, 1.0]]]]))
        assert [each.tolist() for each in pictures["0"]] == [
            [[[8, 8, 40], [255, 250, 190]]],
            [[[255, 250, 190], [8, 8, 40]]],
        ]

    def test_of_a_constant_map_are_dark(self):
        assert pictures_of(torch.full((1, 1, 1), 5.0))[0].tolist() == [[[8, 8, 40]]]
