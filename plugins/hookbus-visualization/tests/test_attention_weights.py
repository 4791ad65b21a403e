import math
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from hookbus.errors import HookError
from hookbus_visualization.attention_weights import attention_weights, weights_of


def sums(weights):
    return weights.sum(-1)


def ones(*shape):
    return torch.ones(shape)


class Fused(nn.Module):
    """Self-attention by the fused function: two heads."""

    def __init__(self, **options):
        super().__init__()
        self.query, self.key, self.options = nn.Linear(8, 8), nn.Linear(8, 8), options

    def forward(self, x):
        query, key = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.query, self.key))
        return scaled_dot_product_attention(query, key, key, **self.options).transpose(1, 2).flatten(2)


class Calling(nn.Module):
    """A module that calls its one child with fixed arguments besides the input, and keeps what it gave."""

    def __init__(self, child, *args, **kwargs):
        super().__init__()
        self.child, self.args, self.kwargs = child, args, kwargs

    def forward(self, x):
        self.given = self.child(x, *self.args, **self.kwargs)
        return self.given


class TestWeightsOf:
    def test_two_keys_by_hand(self):
        query, key = torch.tensor([[[[2.0]]]]), torch.tensor([[[[0.0], [math.log(3) / 2]]]])
        assert weights_of(query, key).tolist() == [[[[0.25, pytest.approx(0.75)]]]]

    @settings(deadline=None, max_examples=40)
    @given(st.data())
    def test_are_what_the_fused_function_multiplies_its_values_by(self, data):
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
        torch.testing.assert_close(weights_of(query, key, **options), expected, atol=1e-6, rtol=1e-5)

    def test_of_a_row_that_is_masked_entirely_are_zero(self):
        mask = torch.tensor([[True, False], [False, False]])
        assert weights_of(ones(1, 1, 2, 1), ones(1, 1, 2, 1), mask).tolist() == [[[[1.0, 0.0], [0.0, 0.0]]]]

    def test_have_32_bits(self):
        assert weights_of(ones(1, 1, 2, 1).bfloat16(), ones(1, 1, 2, 1).bfloat16()).dtype == torch.float32


class TestMultiheadAttention:
    def attention(self, **options):
        torch.manual_seed(0)
        return nn.MultiheadAttention(8, 2, batch_first=True, **options)

    @pytest.mark.parametrize(
        ("args", "kwargs", "wanted"),
        [
            ((), {}, "mean"),
            ((), {"need_weights": False}, None),
            ((None, False), {}, None),
            ((), {"average_attn_weights": False}, "heads"),
            ((None, True, None, False), {}, "heads"),
        ],
    )
    def test_is_asked_for_its_weights_and_gives_its_caller_what_that_wants(self, args, kwargs, wanted):
        attention, x = self.attention(), torch.randn(3, 5, 8)
        model = Calling(attention, x, x, *args, **kwargs)
        expected = attention(x, x, x, average_attn_weights=False)[1].detach()
        found = attention_weights(model, x)
        torch.testing.assert_close(found["child"], expected)
        given = {"mean": expected.mean(1), "heads": expected, None: None}[wanted]
        torch.testing.assert_close(model.given[1], given)

    @pytest.mark.parametrize("shape", [(5, 3, 8), (5, 8)])
    def test_may_have_the_length_first_or_no_batch(self, shape):
        attention, x = nn.MultiheadAttention(8, 2), torch.randn(shape)
        found = attention_weights(Calling(attention, x, x), x)["child"]
        assert found.shape == ((3 if len(shape) == 3 else 1), 2, 5, 5)

    def test_may_be_masked_and_have_more_keys_than_its_input(self):
        x, memory = torch.randn(3, 5, 8), torch.randn(3, 4, 8)
        padding = torch.tensor([[False] * 4, [False, False, True, True], [False] * 4])
        model = Calling(self.attention(add_zero_attn=True), memory, memory, key_padding_mask=padding)
        found = attention_weights(model, x)["child"]
        assert found.shape == (3, 2, 5, 5)
        assert (found[1, :, :, 2:4] == 0).all()
        torch.testing.assert_close(sums(found), ones(3, 2, 5), atol=1e-5, rtol=0)

    def test_drops_nothing(self):
        x = torch.randn(3, 5, 8)
        found = attention_weights(Calling(self.attention(dropout=0.9), x, x), x)["child"]
        torch.testing.assert_close(sums(found), ones(3, 2, 5), atol=1e-5, rtol=0)

    def test_in_16_bits_has_rows_that_sum_to_one_all_the_same(self):
        x = torch.randn(3, 50, 8).bfloat16()
        found = attention_weights(Calling(self.attention().bfloat16(), x, x), x)["child"]
        assert found.dtype == torch.float32
        torch.testing.assert_close(sums(found), ones(3, 2, 50), atol=1e-5, rtol=0)

    def test_with_a_forward_of_its_own_is_looked_at_as_any_module(self):
        class Own(nn.MultiheadAttention):
            def forward(self, x):
                return super().forward(x, x, x, average_attn_weights=False)

        assert attention_weights(Calling(Own(8, 2)), torch.randn(5, 3, 8))["child"].shape == (3, 2, 5, 5)

    def test_is_left_without_hooks(self):
        x, attention = torch.randn(3, 5, 8), self.attention()
        attention_weights(Calling(attention, x, x), x)
        assert not attention._forward_hooks
        assert not attention._forward_pre_hooks
        assert attention(x, x, x, need_weights=False)[1] is None


class TestTransformerEncoder:
    def encoder(self, **options):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        return nn.TransformerEncoder(layer, 2, **options)

    def test_has_weights_in_every_layer(self):
        x = torch.randn(3, 5, 8)
        found = attention_weights(self.encoder(), x)
        assert list(found) == ["layers.0.self_attn", "layers.1.self_attn"]
        encoder = self.encoder().eval()
        expected = encoder.layers[0].self_attn(x, x, x, average_attn_weights=False)[1]
        torch.testing.assert_close(found["layers.0.self_attn"], expected.detach())

    def test_can_have_padding_that_would_take_the_fast_path(self):
        padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
        found = attention_weights(self.encoder(), {"src": torch.randn(2, 5, 8), "src_key_padding_mask": padding})
        for weights in found.values():
            assert (weights[1, :, :, 3:] == 0).all()
            torch.testing.assert_close(sums(weights), ones(2, 2, 5), atol=1e-5, rtol=0)

    def test_can_be_causal(self):
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        found = attention_weights(self.encoder(), {"src": torch.randn(2, 5, 8), "mask": mask, "is_causal": True})
        above = torch.ones(5, 5, dtype=torch.bool).triu(1)
        assert all((weights[..., above] == 0).all() for weights in found.values())

    def test_can_be_compiled_and_under_autocast(self):
        x = torch.randn(2, 5, 8)
        model = torch.compile(self.encoder().eval(), backend="eager")
        expected = attention_weights(self.encoder(), x)
        with torch.no_grad():
            model(x)
        found = attention_weights(model, x)
        assert all(torch.equal(found[path], expected[path]) for path in expected)
        with torch.autocast("cpu", torch.bfloat16):
            halved = attention_weights(model, x)
        for path, weights in halved.items():
            torch.testing.assert_close(weights, expected[path], atol=0.02, rtol=0)
            torch.testing.assert_close(sums(weights), ones(2, 2, 5), atol=1e-5, rtol=0)


class TestFusedAttention:
    def test_is_computed_from_queries_and_keys(self):
        model, x = nn.Sequential(Fused(), Fused()), torch.randn(3, 5, 8)
        found = attention_weights(model, x)
        assert list(found) == ["0", "1"]
        torch.testing.assert_close(sums(found["1"]), ones(3, 2, 5), atol=1e-5, rtol=0)
        query, key = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (model[0].query, model[0].key))
        torch.testing.assert_close(found["0"], (query @ key.mT / 2).softmax(-1).detach())

    def test_gives_what_multihead_attention_gives(self):
        x, attention = torch.randn(3, 5, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        fused = Fused()
        with torch.no_grad():
            for i, layer in enumerate((fused.query, fused.key)):
                layer.weight.copy_(attention.in_proj_weight.unflatten(0, (3, 8))[i])
                layer.bias.copy_(attention.in_proj_bias.unflatten(0, (3, 8))[i])
        asked = attention_weights(Calling(attention, x, x), x)["child"]
        torch.testing.assert_close(attention_weights(Calling(fused), x)["child"], asked)

    def test_takes_its_arguments_by_position_too(self):
        model = Calling(Scaled(), torch.tensor([[True, False]]), 0.5, False)
        assert attention_weights(model, ones(1, 1, 2, 1))["child"].tolist() == [[[[1.0, 0.0], [1.0, 0.0]]]]

    @pytest.mark.parametrize(
        ("shape", "expected"), [((3, 5, 4), (3, 1, 5, 5)), ((5, 4), (1, 1, 5, 5)), ((2, 3, 2, 5, 4), (6, 2, 5, 5))]
    )
    def test_may_have_other_dimensions(self, shape, expected):
        assert attention_weights(Calling(Scaled()), ones(*shape))["child"].shape == expected

    def test_of_a_layer_that_is_used_again_gets_a_number(self):
        shared = Fused()
        model, x = nn.Sequential(shared, shared, Fused()), torch.randn(1, 5, 8)
        assert list(attention_weights(model, x)) == ["0", "0 (2)", "2"]

    def test_has_its_path_even_behind_a_layer_that_failed_and_was_left(self):
        class Trying(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = nn.Linear(3, 3)

            def forward(self, x):
                try:
                    return self.first(x)
                except RuntimeError:
                    return scaled_dot_product_attention(x, x, x)

        assert list(attention_weights(Calling(Trying()), ones(1, 1, 2, 4))) == ["child"]

    def test_heads_can_be_averaged(self):
        model, x = nn.Sequential(Fused()), torch.randn(3, 5, 8)
        averaged = attention_weights(model, x, heads=False)["0"]
        torch.testing.assert_close(averaged, attention_weights(model, x)["0"].mean(1, keepdim=True))

    def test_ends_where_the_model_fails(self):
        model = nn.Sequential(Fused())
        with pytest.raises(RuntimeError):
            attention_weights(model, torch.randn(3, 5, 7))
        assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


class Scaled(nn.Module):
    def forward(self, x, *args):
        return scaled_dot_product_attention(x, x, x, *args)


class Returning(nn.Module):
    """Eager attention as newer Hugging Face models write it: weights are returned unasked."""

    def forward(self, x):
        return x.sum(1), None, x.softmax(-1)


class Asked(nn.Module):
    """As older ones write it, in a model: weights are returned to those who ask, layer by layer."""

    def __init__(self, implementation="eager"):
        super().__init__()
        self.config = types.SimpleNamespace(_attn_implementation=implementation)
        self.attention = Asking()

    def forward(self, x, output_attentions=False):
        return self.attention(x, output_attentions)


class Asking(nn.Module):
    def forward(self, x, output_attentions):
        return (x.sum(1), x.softmax(-1)) if output_attentions else (x.sum(1),)


class TestReturnedWeights:
    x = torch.arange(36.0).reshape(2, 2, 3, 3)

    def test_are_seen_in_the_module_that_made_them_and_in_no_other(self):
        found = attention_weights(nn.Sequential(nn.Identity(), nn.Sequential(Returning())), self.x)
        assert list(found) == ["1.0"]
        torch.testing.assert_close(found["1.0"], self.x.softmax(-1))

    def test_are_asked_for_where_they_can_be(self):
        found = attention_weights(Asked(), self.x)
        assert list(found) == ["attention"]
        torch.testing.assert_close(found["attention"], self.x.softmax(-1))

    def test_are_not_asked_for_where_attention_is_fused(self):
        with pytest.raises(HookError, match="No attention was seen"):
            attention_weights(Asked("sdpa"), self.x)

    def test_may_have_rows_that_are_masked_entirely(self):
        weights = ones(1, 1, 2, 4).bfloat16() / 4
        weights[..., 1, :] = 0
        found = attention_weights(Calling(Given(weights)), ones(1))
        assert found["child"].tolist() == [[[[0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 0.0, 0.0]]]]

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
    def test_are_not_taken_for_other_things_that_a_module_returns(self, other):
        with pytest.raises(HookError, match="No attention was seen"):
            attention_weights(Calling(Given(other)), ones(1))


class Given(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.weights = weights

    def forward(self, x):
        return x, self.weights


def test_a_model_without_attention_is_told_what_can_be_seen():
    with pytest.raises(HookError, match=r"nn\.MultiheadAttention.*leave attention out of content"):
        attention_weights(nn.Linear(2, 2), ones(1, 2))
