"""Numbers of the summary, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookbus_model_summary import ModelSummary, summarize

from .toys import CNN, images


def rows(summary: ModelSummary) -> dict[str, tuple[Any, ...]]:
    return {
        row.name: (row.type, row.parameters.total, row.calls and (row.calls.inputs, row.calls.outputs, row.calls.flops))
        for row in summary.rows
    }


class TestCNN:
    def test_rows_and_totals(self) -> None:
        model = CNN()
        summary = summarize(model, lambda: model(images()))

        # Convolution: 4 * (1 * 3 * 3) weights + 4; 2 * 2 images * 36 pixels * 4 channels * 9 products.
        # Linear layer: 144 * 10 + 10; 2 * 2 images * 144 * 10.
        assert rows(summary) == {
            "conv": ("Conv2d", 40, (((2, 1, 8, 8),), ((2, 4, 6, 6),), 5184)),
            "norm": ("BatchNorm2d", 8, (((2, 4, 6, 6),), ((2, 4, 6, 6),), 0)),
            "head": ("Sequential", 1450, (((2, 4, 6, 6),), ((2, 10),), 5760)),
        }
        assert (summary.type, summary.inputs, summary.flops) == ("CNN", ((2, 1, 8, 8),), 10_944)
        assert (summary.parameters.total, summary.parameters.trainable) == (1498, 1498)
        # 4 bytes per parameter; running mean and variance of 4 channels, and a count of 8 bytes.
        assert (summary.parameter_bytes, summary.buffer_bytes) == (5992, 40)

    @pytest.mark.parametrize(
        ("depth", "names"),
        [
            (0, []),
            (1, ["conv", "norm", "head"]),
            (2, ["conv", "norm", "head", "head.0", "head.1", "head.2"]),
            (-1, ["conv", "norm", "head", "head.0", "head.1", "head.2"]),
        ],
    )
    def test_depth(self, depth: int, names: list[str]) -> None:
        summary = summarize(CNN(), max_depth=depth)
        assert [row.name for row in summary.rows] == names
        assert summary.parameters.total == 1498

    def test_frozen_parameters_are_not_trainable(self) -> None:
        model = CNN()
        model.head.requires_grad_(False)
        summary = summarize(model)
        assert summary.parameters.trainable == 48
        assert [row.parameters.trainable for row in summary.rows] == [40, 8, 0]

    def test_hooks_are_removed(self) -> None:
        model = CNN()
        summarize(model, lambda: model(images()))
        with pytest.raises(RuntimeError):
            model(images()[:, :, :2])
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class TestSharedParameters:
    class Tied(nn.Module):
        """Embedding of 5 x 3 whose weight the output layer has as well."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 3)
            self.output = nn.Linear(3, 5)
            self.output.weight = self.embedding.weight

        def forward(self, tokens: Tensor) -> Tensor:
            output: Tensor = self.output(self.embedding(tokens))
            return output

    def test_shared_parameter_is_counted_once(self) -> None:
        summary = summarize(self.Tied())
        counts = {row.name: (row.parameters.total, row.parameters.shared) for row in summary.rows}

        assert counts == {"embedding": (15, 0), "output": (5, 15)}
        assert summary.parameters.total == 20
        assert summary.parameter_bytes == 80

    def test_parent_counts_what_its_children_share(self) -> None:
        summary = summarize(nn.Sequential(self.Tied(), nn.ReLU()), max_depth=-1)
        counts = {row.name: (row.parameters.total, row.parameters.shared) for row in summary.rows}
        assert counts == {"0": (20, 0), "0.embedding": (15, 0), "0.output": (5, 15), "1": (0, 0)}

    def test_module_that_is_called_twice_has_the_operations_of_both_calls(self) -> None:
        layer = nn.Linear(3, 3)
        model = nn.Sequential(layer, nn.ReLU(), layer)
        summary = summarize(model, lambda: model(torch.ones(2, 3)))

        assert rows(summary)["0"] == ("Linear", 12, (((2, 3),), ((2, 3),), 72))
        assert list(rows(summary)) == ["0", "1"]
        assert (summary.parameters.total, summary.flops) == (12, 72)


class TestForwardPass:
    def test_nested_inputs_and_outputs(self) -> None:
        class Pair(nn.Module):
            def forward(self, a: Tensor, *, b: dict[str, Any]) -> dict[str, Any]:
                return {"sum": a + b["x"], "list": [a, (a.sum(), "text")]}

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.pair = Pair()
                self.unused = nn.Linear(1, 1)

            def forward(self, a: Tensor) -> Any:
                return self.pair(a, b={"x": a, "n": 3})

        model = Outer()
        listed = rows(summarize(model, lambda: model(torch.ones(2, 3))))
        assert listed["pair"] == ("Pair", 0, (((2, 3), (2, 3)), ((2, 3), (2, 3), ()), 0))
        assert listed["unused"] == ("Linear", 2, None)

    def test_model_without_submodules(self) -> None:
        model = nn.Linear(3, 2)
        assert rows(summarize(model, lambda: model(torch.ones(1, 3)))) == {
            "": ("Linear", 8, (((1, 3),), ((1, 2),), 12))
        }

    def test_only_a_part_of_the_model_is_called(self) -> None:
        model = nn.ModuleDict({"a": nn.Sequential(nn.Linear(2, 2)), "b": nn.Linear(2, 3)})
        summary = summarize(model, lambda: model["b"](model["a"](torch.ones(1, 2))))
        assert (summary.flops, summary.inputs) == (8 + 12, ())

    def test_attention(self) -> None:
        model = nn.MultiheadAttention(4, 2, bias=False, batch_first=True)
        query = torch.ones(1, 3, 4)
        summary = summarize(model, lambda: model(query, query, query, need_weights=False))
        # Projections: 2 * 3 * 4 * 12 and 2 * 3 * 4 * 4; attention: 2 heads * 2 products * 2 * 3 * 3 * 2.
        assert summary.flops == 288 + 96 + 144

    def test_failed_forward_pass_is_noted(self) -> None:
        model = CNN()
        summary = summarize(model, lambda: model(torch.ones(2, 3)))
        assert summary.note.startswith("the forward pass of an example failed: RuntimeError: ")
        assert summary.flops is None
        assert [row.calls for row in summary.rows] == [None] * 3
        assert not any(m._forward_hooks for m in model.modules())

    def test_reason_of_the_caller(self) -> None:
        assert summarize(CNN()).note == "no example batch"
        assert summarize(CNN(), note="no data").note == "no data"


class TestLazyParameters:
    def test_they_are_marked_and_stay_uninitialized(self) -> None:
        model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
        summary = summarize(model, lambda: model(torch.ones(1, 2)))

        assert [(row.parameters.total, row.parameters.uninitialized) for row in summary.rows] == [(0, 2), (8, 0)]
        assert summary.parameters.uninitialized == 2
        assert summary.note == "the forward pass would initialize the lazy parameters"
        assert isinstance(model[0], nn.LazyLinear)
        assert isinstance(model[0].weight, nn.UninitializedParameter)
        assert summary.parameter_bytes == 32
