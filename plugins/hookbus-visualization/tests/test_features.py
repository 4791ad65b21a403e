import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from hookbus.errors import ConfigError, HookError
from hookbus_visualization.features import (
    MAX_SIDE_PIXELS,
    compute_feature_maps,
    render_feature_maps,
    select_layers,
    to_maps,
)


def ramp(*shape):
    return torch.arange(float(np.prod(shape))).reshape(shape)


def small_model():
    """Return a model of two convolutions: the first doubles and negates its input, the second sums the channels."""
    model = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.ReLU(inplace=True), nn.Conv2d(2, 1, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([2.0, -1.0]).reshape(2, 1, 1, 1))
        model[2].weight.fill_(1.0)
    return model


class TestLayers:
    model = nn.ModuleDict({"back": nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Conv2d(1, 1, 1)), "head": nn.ReLU()})

    def test_convolutions_are_the_default_layers(self):
        assert list(select_layers(self.model)) == ["back.0", "back.2"]

    def test_default_layers_of_a_deep_model_are_evenly_spaced(self):
        deep = nn.Sequential(*(nn.Conv2d(1, 1, 1) for _ in range(50)))
        assert list(select_layers(deep)) == ["0", "7", "14", "21", "28", "35", "42", "49"]

    @pytest.mark.parametrize(
        ("targets", "expected"),
        [
            (["head"], ["head"]),
            (["back.1", "back.0"], ["back.0", "back.1"]),
            (["back.?"], ["back.0", "back.1", "back.2"]),
            (["*0", "head"], ["back.0", "head"]),
        ],
    )
    def test_layers_are_selected_by_path_or_pattern_in_the_order_of_the_model(self, targets, expected):
        layers = select_layers(self.model, targets)
        assert layers == {path: self.model.get_submodule(path) for path in expected}
        assert list(layers) == expected

    def test_unknown_layers_are_reported_together_with_similar_names(self):
        with pytest.raises(ConfigError) as error:
            select_layers(self.model, ["hed", "back.0", "zzz*"])
        assert error.value.problems == [
            "The model has no layer 'hed'. Did you mean 'head'?",
            "The model has no layer 'zzz*'. Available: back, back.0, back.1, back.2, head.",
        ]

    def test_paths_of_compiled_modules_are_those_of_the_original_modules(self):
        inner = nn.Sequential(nn.ReLU())
        model = nn.Sequential(torch.compile(inner, backend="eager"))
        assert select_layers(model, ["*"]) == {"0": inner, "0.0": inner[0]}
        assert select_layers(torch.compile(inner, backend="eager"), ["*"]) == {"0": inner[0]}

    def test_innermost_layers_are_the_default_if_there_is_no_convolution(self):
        model = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(1, 1), nn.ReLU()))
        assert list(select_layers(model)) == ["0", "1.0", "1.1"]


class TestMaps:
    def test_first_channels_are_used(self):
        assert torch.equal(to_maps(ramp(5, 2, 3), 2), ramp(2, 2, 3))

    def test_middle_slices_of_a_volume_are_used(self):
        assert torch.equal(to_maps(ramp(2, 3, 2, 2), 2), torch.stack([ramp(2, 3, 2, 2)[0, 1], ramp(2, 3, 2, 2)[1, 1]]))

    @pytest.mark.parametrize(("shape", "expected"), [((4, 3), (1, 4, 3)), ((6,), (1, 1, 6)), ((), (1, 1, 1))])
    def test_outputs_with_fewer_dimensions_are_one_map(self, shape, expected):
        assert torch.equal(to_maps(torch.ones(shape), 16), torch.ones(expected))

    def test_large_maps_are_average_pooled(self):
        checks = (ramp(2 * MAX_SIDE_PIXELS, 2 * MAX_SIDE_PIXELS) % 2)[None]
        assert torch.equal(to_maps(checks, 1), torch.full((1, MAX_SIDE_PIXELS, MAX_SIDE_PIXELS), 0.5))

    def test_maps_without_elements_are_kept(self) -> None:
        assert to_maps(torch.ones(3, 0, 4), 2).shape == (2, 0, 4)

    def test_small_sides_are_not_pooled(self):
        assert to_maps(torch.ones(1, 4, 1000), 1).shape == (1, 4, MAX_SIDE_PIXELS)

    def test_maps_are_float32_copies_that_do_not_keep_the_output_alive(self):
        output = torch.ones(3, 2, 2, dtype=torch.bfloat16, requires_grad=True)
        maps = to_maps(output, 3)
        assert maps.dtype == torch.float32
        assert not maps.requires_grad
        output = torch.zeros(3, 2, 2)
        assert to_maps(output, 1).untyped_storage().nbytes() == 16
        copies = to_maps(output, 3)
        output.fill_(1.0)
        assert copies.sum() == 0


class TestFeatureMaps:
    def test_maps_are_the_layer_outputs_for_the_first_sample(self):
        inputs = torch.tensor([1.0, -3.0, 7.0, 7.0]).reshape(2, 1, 1, 2)
        layers = compute_feature_maps(small_model(), inputs)
        assert {path: maps.tolist() for path, maps in layers.items()} == {
            "0": [[[2.0, -6.0]], [[-1.0, 3.0]]],  # captured before the in-place ReLU after it
            "2": [[[2.0, 3.0]]],
        }

    def test_number_of_channels_is_limited(self):
        assert compute_feature_maps(small_model(), torch.ones(1, 1, 2, 2), count=1)["0"].shape == (1, 2, 2)

    @pytest.mark.parametrize(("sample", "expected"), [(1, [14.0]), (-1, [14.0]), (0, [2.0])])
    def test_any_sample_can_be_selected(self, sample, expected):
        inputs = torch.tensor([1.0, 7.0]).reshape(2, 1, 1, 1)
        assert compute_feature_maps(small_model(), inputs, count=1, sample=sample)["0"].flatten().tolist() == expected

    def test_tensors_are_found_in_nested_outputs(self):
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

        layers = compute_feature_maps(Model(), torch.ones(4, 5, 2), ["*"])
        assert {path: tuple(maps.shape) for path, maps in layers.items()} == {"rnn": (1, 5, 3), "boxes": (1, 5, 2)}

    def test_unused_layers_and_layers_without_samples_are_omitted(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.unused, self.reduced = nn.ReLU(), nn.ReLU(), nn.CrossEntropyLoss()

            def forward(self, x):
                return self.reduced(self.used(x), x)

        assert list(compute_feature_maps(Model(), torch.ones(2, 3), ["*"])) == ["used"]

    @pytest.mark.parametrize(
        ("model", "names"), [(nn.Module(), r"\[\]"), (nn.ModuleDict({"a": nn.ReLU()}), r"\['a'\]")]
    )
    def test_only_unused_layers_raise_hook_error(self, model, names):
        model.forward = lambda x: x
        with pytest.raises(HookError, match=rf"no feature maps of the layers {names}: the model does not use"):
            compute_feature_maps(model, torch.ones(1, 1))

    def test_last_call_of_a_layer_is_used(self):
        shared = nn.Linear(1, 1, bias=False)
        nn.init.constant_(shared.weight, 3.0)
        assert compute_feature_maps(nn.Sequential(shared, shared), torch.ones(1, 1), ["0"])["0"].tolist() == [[[9.0]]]

    @pytest.mark.parametrize(
        ("model", "inputs"),
        [
            (nn.Bilinear(1, 1, 1), (torch.ones(1, 1), torch.ones(1, 1))),
            (nn.MultiheadAttention(1, 1), {name: torch.ones(1, 1, 1) for name in ("query", "key", "value")}),
        ],
    )
    def test_model_is_called_as_in_the_training_loop(self, model, inputs):
        assert list(compute_feature_maps(Outer(model), inputs, ["inner"])) == ["inner"]

    def test_compiled_model_returns_maps(self):
        model = torch.compile(small_model(), backend="eager")
        model(torch.ones(1, 1, 1, 1))
        assert compute_feature_maps(model, torch.ones(1, 1, 1, 1), ["0"])["0"].flatten().tolist() == [2.0, -1.0]

    def test_no_recompilation_is_triggered(self):
        compilations = []

        def backend(graph, inputs):
            compilations.append(graph)
            return graph.forward

        model = torch.compile(small_model(), backend=backend)
        model(torch.ones(1, 1, 1, 1))
        compute_feature_maps(model, torch.ones(1, 1, 1, 1))
        model(torch.ones(1, 1, 1, 1))
        assert len(compilations) == 1

    def test_individually_compiled_layer_returns_maps(self):
        model = small_model()
        model[0] = torch.compile(model[0], backend="eager")
        model(torch.ones(1, 1, 1, 1))
        assert compute_feature_maps(model, torch.ones(1, 1, 1, 1), ["0"])["0"].flatten().tolist() == [2.0, -1.0]

    def test_transformer_with_padding_returns_maps(self):
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
        padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
        inputs = {"src": torch.randn(2, 5, 8), "src_key_padding_mask": padding}
        layers = compute_feature_maps(encoder, inputs, ["layers.0.linear?"])
        shapes = {path: tuple(maps.shape) for path, maps in layers.items()}
        assert shapes == {"layers.0.linear1": (1, 5, 16), "layers.0.linear2": (1, 5, 8)}

    def test_maps_can_be_computed_under_autocast(self):
        with torch.autocast("cpu", torch.bfloat16):
            maps = compute_feature_maps(small_model(), torch.ones(1, 1, 1, 1))["0"]
        assert maps.dtype == torch.float32
        assert maps.flatten().tolist() == [2.0, -1.0]

    def test_model_that_modifies_its_input_can_run_in_inference_mode(self):
        model = nn.Sequential(nn.ReLU(inplace=True), nn.ReLU(inplace=True))
        with torch.inference_mode():
            inputs = torch.tensor([[-1.0, 1.0]])
            assert compute_feature_maps(model, inputs, ["1"])["1"].tolist() == [[[0.0, 1.0]]]
        assert inputs.tolist() == [[-1.0, 1.0]]


class TestVisualizeFeatures:
    class Model(nn.Sequential):
        def visualize_features(self, x):
            assert not self.training
            return x + 1, {"second": -x}, "no tensor"

    def test_returned_tensors_replace_layer_outputs(self):
        tensors = compute_feature_maps(self.Model(nn.ReLU()), torch.ones(1, 1, 1, 2))
        assert {name: maps.tolist() for name, maps in tensors.items()} == {"0": [[[2.0, 2.0]]], "1": [[[-1.0, -1.0]]]}

    def test_method_is_not_called_if_layers_are_selected(self):
        assert list(compute_feature_maps(self.Model(nn.Conv2d(1, 1, 1)), torch.ones(1, 1, 1, 2), ["0"])) == ["0"]

    def test_return_value_without_samples_raises_hook_error(self):
        model = small_model()
        model.visualize_features = lambda _: {"loss": torch.ones(())}
        with pytest.raises(HookError, match=r"must return tensors of shape .*, got \{loss: Tensor of shape \(\)\}"):
            compute_feature_maps(model, torch.ones(1, 1, 1, 1))


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


class TestWatched:
    def test_own_hooks_are_removed_and_other_hooks_are_kept(self):
        model, calls = small_model(), []
        model[0].register_forward_hook(lambda *_: calls.append(1))
        for _ in range(3):
            compute_feature_maps(model, torch.ones(1, 1, 1, 1))
        assert [len(module._forward_hooks) for module in model] == [1, 0, 0]
        assert len(calls) == 3

    def test_hooks_are_removed_if_the_model_raises(self):
        model = small_model()
        with pytest.raises(RuntimeError, match="channels"):
            compute_feature_maps(model, torch.ones(1, 5, 1, 1))
        assert [len(module._forward_hooks) for module in model] == [0, 0, 0]

    def test_no_activation_is_kept_alive(self):
        model, activations = small_model(), []
        model[0].register_forward_hook(lambda _, __, output: activations.append(weakref.ref(output)))
        maps = compute_feature_maps(model, torch.ones(4, 1, 2, 2))
        gc.collect()
        assert activations[0]() is None
        assert maps["0"].shape == (2, 2, 2)


class TestRendering:
    def test_each_channel_is_normalized_to_the_full_colormap(self):
        panels = render_feature_maps(compute_feature_maps(small_model(), torch.tensor([[[[0.0, 1.0]]]])))
        assert [panel.image.tolist() for panel in panels["0"]] == [
            [[[8, 8, 40], [255, 250, 190]]],
            [[[255, 250, 190], [8, 8, 40]]],
        ]

    def test_constant_map_is_rendered_dark(self):
        assert render_feature_maps({"": torch.full((1, 1, 1), 5.0)})[""][0].image.tolist() == [[[8, 8, 40]]]
