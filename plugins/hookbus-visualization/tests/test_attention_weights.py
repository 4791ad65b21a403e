import math
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from hookbus.errors import HookError
from hookbus_visualization.attention_weights import capture_attention_weights, compute_weights


def sums(weights):
    return weights.sum(-1)


def ones(*shape):
    return torch.ones(shape)


class Fused(nn.Module):
    """Self-attention with two heads, computed by the fused function."""

    def __init__(self, **options):
        super().__init__()
        self.query, self.key, self.options = nn.Linear(8, 8), nn.Linear(8, 8), options

    def forward(self, x):
        query, key = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.query, self.key))
        return scaled_dot_product_attention(query, key, key, **self.options).transpose(1, 2).flatten(2)


class Caller(nn.Module):
    """Module that calls its child with additional fixed arguments, and stores the output."""

    def __init__(self, child, *args, **kwargs):
        super().__init__()
        self.child, self.args, self.kwargs = child, args, kwargs

    def forward(self, x):
        self.output = self.child(x, *self.args, **self.kwargs)
        return self.output


class TestWeightsOf:
    def test_weights_of_two_keys_are_the_softmax_of_their_scores(self):
        query, key = torch.tensor([[[[2.0]]]]), torch.tensor([[[[0.0], [math.log(3) / 2]]]])
        assert compute_weights(query, key).tolist() == [[[[0.25, pytest.approx(0.75)]]]]

    @settings(deadline=None, max_examples=40)
    @given(st.data())
    def test_weights_equal_those_applied_by_the_fused_function(self, data):
        heads, length, keys = (data.draw(st.integers(1, 5)) for _ in range(3))
        groups = data.draw(st.sampled_from([1, 2]))
        generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
        query = torch.randn(2, heads * groups, length, 4, generator=generator)
        key = torch.randn(2, heads, keys, 4, generator=generator)
        value = torch.eye(keys).expand(2, heads, keys, keys)
        mask = data.draw(st.sampled_from([None, "hiding", "adding", "causal"]))
        options = {"scale": data.draw(st.sampled_from([None, 0.5])), "enable_gqa": groups > 1}
        if mask == "hiding":
            options["attn_mask"] = torch.rand(length, keys, generator=generator) > 0.5
            options["attn_mask"][:, 0] = True
        if mask == "adding":
            options["attn_mask"] = torch.randn(2, 1, length, keys, generator=generator)
        if mask == "causal":
            options["is_causal"] = True
        expected = scaled_dot_product_attention(query, key, value, **options)
        torch.testing.assert_close(compute_weights(query, key, **options), expected, atol=1e-6, rtol=1e-5)

    def test_fully_masked_rows_are_zero(self):
        mask = torch.tensor([[True, False], [False, False]])
        assert compute_weights(ones(1, 1, 2, 1), ones(1, 1, 2, 1), mask).tolist() == [[[[1.0, 0.0], [0.0, 0.0]]]]

    def test_weights_are_float32(self):
        assert compute_weights(ones(1, 1, 2, 1).bfloat16(), ones(1, 1, 2, 1).bfloat16()).dtype == torch.float32


class TestMultiheadAttention:
    def attention(self, **options):
        torch.manual_seed(0)
        return nn.MultiheadAttention(8, 2, batch_first=True, **options)

    @pytest.mark.parametrize(
        ("args", "kwargs", "output_form"),
        [
            ((), {}, "mean"),
            ((), {"need_weights": False}, None),
            ((None, False), {}, None),
            ((), {"average_attn_weights": False}, "heads"),
            ((None, True, None, False), {}, "heads"),
        ],
    )
    def test_weights_are_captured_and_the_caller_receives_its_original_output(self, args, kwargs, output_form):
        attention, x = self.attention(), torch.randn(3, 5, 8)
        model = Caller(attention, x, x, *args, **kwargs)
        expected = attention(x, x, x, average_attn_weights=False)[1].detach()
        weights = capture_attention_weights(model, x)
        torch.testing.assert_close(weights["child"], expected)
        returned = {"mean": expected.mean(1), "heads": expected, None: None}[output_form]
        torch.testing.assert_close(model.output[1], returned)

    @pytest.mark.parametrize("shape", [(5, 3, 8), (5, 8)])
    def test_inputs_may_be_sequence_first_or_unbatched(self, shape):
        attention, x = nn.MultiheadAttention(8, 2), torch.randn(shape)
        weights = capture_attention_weights(Caller(attention, x, x), x)["child"]
        assert weights.shape == ((3 if len(shape) == 3 else 1), 2, 5, 5)

    def test_attention_may_be_masked_and_have_additional_keys(self):
        x, memory = torch.randn(3, 5, 8), torch.randn(3, 4, 8)
        padding = torch.tensor([[False] * 4, [False, False, True, True], [False] * 4])
        model = Caller(self.attention(add_zero_attn=True), memory, memory, key_padding_mask=padding)
        weights = capture_attention_weights(model, x)["child"]
        assert weights.shape == (3, 2, 5, 5)
        assert (weights[1, :, :, 2:4] == 0).all()
        torch.testing.assert_close(sums(weights), ones(3, 2, 5), atol=1e-5, rtol=0)

    def test_dropout_is_not_applied(self):
        x = torch.randn(3, 5, 8)
        weights = capture_attention_weights(Caller(self.attention(dropout=0.9), x, x), x)["child"]
        torch.testing.assert_close(sums(weights), ones(3, 2, 5), atol=1e-5, rtol=0)

    def test_rows_of_16_bit_weights_sum_to_one(self):
        x = torch.randn(3, 50, 8).bfloat16()
        weights = capture_attention_weights(Caller(self.attention().bfloat16(), x, x), x)["child"]
        assert weights.dtype == torch.float32
        torch.testing.assert_close(sums(weights), ones(3, 2, 50), atol=1e-5, rtol=0)

    def test_subclass_with_another_signature_is_handled_as_any_other_module(self):
        class SingleInputAttention(nn.MultiheadAttention):
            def forward(self, x):
                return super().forward(x, x, x, average_attn_weights=False)

        assert capture_attention_weights(Caller(SingleInputAttention(8, 2)), torch.randn(5, 3, 8))["child"].shape == (
            3,
            2,
            5,
            5,
        )

    def test_no_hooks_remain_on_the_module(self):
        x, attention = torch.randn(3, 5, 8), self.attention()
        capture_attention_weights(Caller(attention, x, x), x)
        assert not attention._forward_hooks
        assert not attention._forward_pre_hooks
        assert attention(x, x, x, need_weights=False)[1] is None


class TestTransformerEncoder:
    def encoder(self, **options):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        return nn.TransformerEncoder(layer, 2, **options)

    def test_weights_of_every_layer_are_captured(self):
        x = torch.randn(3, 5, 8)
        layers = capture_attention_weights(self.encoder(), x)
        assert list(layers) == ["layers.0.self_attn", "layers.1.self_attn"]
        encoder = self.encoder().eval()
        expected = encoder.layers[0].self_attn(x, x, x, average_attn_weights=False)[1]
        torch.testing.assert_close(layers["layers.0.self_attn"], expected.detach())

    def test_padding_masks_do_not_use_the_fast_path(self):
        padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
        layers = capture_attention_weights(
            self.encoder(), {"src": torch.randn(2, 5, 8), "src_key_padding_mask": padding}
        )
        for weights in layers.values():
            assert (weights[1, :, :, 3:] == 0).all()
            torch.testing.assert_close(sums(weights), ones(2, 2, 5), atol=1e-5, rtol=0)

    def test_weights_of_causal_attention_are_zero_above_the_diagonal(self):
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        layers = capture_attention_weights(
            self.encoder(), {"src": torch.randn(2, 5, 8), "mask": mask, "is_causal": True}
        )
        above = torch.ones(5, 5, dtype=torch.bool).triu(1)
        assert all((weights[..., above] == 0).all() for weights in layers.values())

    def test_weights_of_compiled_and_autocast_models_are_captured(self):
        x = torch.randn(2, 5, 8)
        model = torch.compile(self.encoder().eval(), backend="eager")
        expected = capture_attention_weights(self.encoder(), x)
        with torch.no_grad():
            model(x)
        layers = capture_attention_weights(model, x)
        assert all(torch.equal(layers[path], expected[path]) for path in expected)
        with torch.autocast("cpu", torch.bfloat16):
            autocast_weights = capture_attention_weights(model, x)
        for path, weights in autocast_weights.items():
            torch.testing.assert_close(weights, expected[path], atol=0.02, rtol=0)
            torch.testing.assert_close(sums(weights), ones(2, 2, 5), atol=1e-5, rtol=0)


class TestFusedAttention:
    def test_weights_are_computed_from_queries_and_keys(self):
        model, x = nn.Sequential(Fused(), Fused()), torch.randn(3, 5, 8)
        layers = capture_attention_weights(model, x)
        assert list(layers) == ["0", "1"]
        torch.testing.assert_close(sums(layers["1"]), ones(3, 2, 5), atol=1e-5, rtol=0)
        query, key = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (model[0].query, model[0].key))
        torch.testing.assert_close(layers["0"], (query @ key.mT / 2).softmax(-1).detach())

    def test_weights_equal_those_of_multihead_attention(self):
        x, attention = torch.randn(3, 5, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        fused = Fused()
        with torch.no_grad():
            for i, layer in enumerate((fused.query, fused.key)):
                layer.weight.copy_(attention.in_proj_weight.unflatten(0, (3, 8))[i])
                layer.bias.copy_(attention.in_proj_bias.unflatten(0, (3, 8))[i])
        expected = capture_attention_weights(Caller(attention, x, x), x)["child"]
        torch.testing.assert_close(capture_attention_weights(Caller(fused), x)["child"], expected)

    def test_positional_arguments_are_supported(self):
        model = Caller(Scaled(), torch.tensor([[True, False]]), 0.5, False)
        assert capture_attention_weights(model, ones(1, 1, 2, 1))["child"].tolist() == [[[[1.0, 0.0], [1.0, 0.0]]]]

    @pytest.mark.parametrize(
        ("shape", "expected"), [((3, 5, 4), (3, 1, 5, 5)), ((5, 4), (1, 1, 5, 5)), ((2, 3, 2, 5, 4), (6, 2, 5, 5))]
    )
    def test_inputs_may_have_other_numbers_of_dimensions(self, shape, expected):
        assert capture_attention_weights(Caller(Scaled()), ones(*shape))["child"].shape == expected

    def test_repeated_calls_of_a_layer_are_numbered(self):
        shared = Fused()
        model, x = nn.Sequential(shared, shared, Fused()), torch.randn(1, 5, 8)
        assert list(capture_attention_weights(model, x)) == ["0", "0 (2)", "2"]

    def test_path_is_correct_after_a_layer_raised_an_error_that_the_model_caught(self):
        class FallbackAttention(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = nn.Linear(3, 3)

            def forward(self, x):
                try:
                    return self.first(x)
                except RuntimeError:
                    return scaled_dot_product_attention(x, x, x)

        assert list(capture_attention_weights(Caller(FallbackAttention()), ones(1, 1, 2, 4))) == ["child"]

    def test_heads_can_be_averaged(self):
        model, x = nn.Sequential(Fused()), torch.randn(3, 5, 8)
        averaged = capture_attention_weights(model, x, heads=False)["0"]
        torch.testing.assert_close(averaged, capture_attention_weights(model, x)["0"].mean(1, keepdim=True))

    def test_hooks_are_removed_if_the_model_raises(self):
        model = nn.Sequential(Fused())
        with pytest.raises(RuntimeError):
            capture_attention_weights(model, torch.randn(3, 5, 7))
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class Scaled(nn.Module):
    def forward(self, x, *args):
        return scaled_dot_product_attention(x, x, x, *args)


class NewerHuggingFaceAttention(nn.Module):
    """Eager attention of newer Hugging Face models, which always return weights."""

    def forward(self, x):
        return x.sum(1), None, x.softmax(-1)


class OlderHuggingFaceModel(nn.Module):
    """Eager attention of older Hugging Face models, which return weights on request."""

    def __init__(self, implementation="eager"):
        super().__init__()
        self.config = types.SimpleNamespace(_attn_implementation=implementation)
        self.attention = OlderHuggingFaceAttention()

    def forward(self, x, output_attentions=False):
        return self.attention(x, output_attentions)


class OlderHuggingFaceAttention(nn.Module):
    def forward(self, x, output_attentions):
        return (x.sum(1), x.softmax(-1)) if output_attentions else (x.sum(1),)


class TestReturnedWeights:
    x = torch.arange(36.0).reshape(2, 2, 3, 3)

    def test_returned_weights_are_recorded_for_the_innermost_module_only(self):
        layers = capture_attention_weights(
            nn.Sequential(nn.Identity(), nn.Sequential(NewerHuggingFaceAttention())), self.x
        )
        assert list(layers) == ["1.0"]
        torch.testing.assert_close(layers["1.0"], self.x.softmax(-1))

    def test_weights_are_requested_from_modules_that_support_the_request(self):
        layers = capture_attention_weights(OlderHuggingFaceModel(), self.x)
        assert list(layers) == ["attention"]
        torch.testing.assert_close(layers["attention"], self.x.softmax(-1))

    def test_weights_are_not_requested_from_fused_attention(self):
        with pytest.raises(HookError, match="contains no supported attention"):
            capture_attention_weights(OlderHuggingFaceModel("sdpa"), self.x)

    def test_returned_weights_may_have_fully_masked_rows(self):
        weights = ones(1, 1, 2, 4).bfloat16() / 4
        weights[..., 1, :] = 0
        layers = capture_attention_weights(Caller(ConstantOutput(weights)), ones(1))
        assert layers["child"].tolist() == [[[[0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 0.0, 0.0]]]]

    @pytest.mark.parametrize(
        "other",
        [
            ones(1, 1, 2, 4),
            torch.zeros(1, 1, 2, 4),
            torch.tensor([[[[1.5, -0.5]]]]),
            torch.tensor([[[[1, 0]]]]),
            ones(2, 4) / 4,
            ones(1, 1, 4, 1),
            torch.zeros(1, 1, 0, 4),
            "text",
        ],
    )
    def test_other_outputs_are_not_recorded_as_weights(self, other):
        with pytest.raises(HookError, match="contains no supported attention"):
            capture_attention_weights(Caller(ConstantOutput(other)), ones(1))


class ConstantOutput(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.weights = weights

    def forward(self, x):
        return x, self.weights


def test_model_without_attention_raises_an_error_that_lists_supported_modules():
    with pytest.raises(HookError, match=r"nn\.MultiheadAttention.*remove attention from `content`"):
        capture_attention_weights(nn.Linear(2, 2), ones(1, 2))
