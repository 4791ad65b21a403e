"""The printed table."""

from __future__ import annotations

import io
import json
from typing import Any

import torch
from rich.console import Console
from torch import nn

from hookbus_model_summary.summary import ModelSummary, summarize
from hookbus_model_summary.table import describe_totals, format_shapes, print_summary, to_dict

from .toys import CNN, images


def show(summary: ModelSummary, **options: Any) -> str:
    file = io.StringIO()
    print_summary(summary, Console(**{"file": file, "width": 120, **options}))
    return file.getvalue()


def summarize_cnn(max_depth: int = 1) -> ModelSummary:
    model = CNN()
    return summarize(model, lambda: model(images()), max_depth=max_depth)


def test_plain_table_has_no_lines_and_no_styles() -> None:
    lines = [line.rstrip() for line in show(summarize_cnn()).splitlines()]
    assert [line.split() for line in lines[:2]] == [
        ["name", "type", "parameters", "trainable", "inputs", "outputs", "FLOPs"],
        ["conv", "Conv2d", "40", "40", "[2,", "1,", "8,", "8]", "[2,", "4,", "6,", "6]", "5,184"],
    ]
    assert lines[4:] == [
        "CNN: 1,498 parameters, 1,498 trainable, 0 not trainable",
        "size: 0.006 MB of parameters, 0.000 MB of buffers",
        "FLOPs: 10,944 in a forward pass for inputs [2, 1, 8, 8]",
    ]
    assert "\x1b" not in "".join(lines)
    assert "".join(lines).isascii()


def test_table_of_a_terminal_has_lines() -> None:
    assert "─" in show(summarize_cnn(), force_terminal=True)


def test_depth_0_prints_the_totals_only() -> None:
    assert show(summarize_cnn(0)).splitlines() == describe_totals(summarize_cnn(0))


def test_shared_and_uninitialized_parameters_are_marked() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 3), nn.Linear(3, 3, bias=False))
    model[2].weight = model[1].weight
    output = show(summarize(model))
    assert "uninitialized" in output.splitlines()[1]
    assert "0 + 9 shared" in output.splitlines()[3]
    assert describe_totals(summarize(model)) == [
        "Sequential: 12 + uninitialized parameters, 12 trainable, 0 not trainable",
        "size: 0.000 MB of parameters, 0.000 MB of buffers",
        "shapes and FLOPs: unknown, because no example batch",
    ]


def test_name_with_brackets_is_printed_literally() -> None:
    model = nn.ModuleDict({"[red]x[/red]": nn.Linear(1, 1)})
    assert "[red]x[/red]" in show(summarize(model))


def test_shapes() -> None:
    assert format_shapes([]) == "-"
    assert format_shapes([(2, 3), ()]) == "[2, 3], []"
    assert format_shapes([(1,)] * 5) == "[1], [1], [1], ..."


def test_json() -> None:
    document = json.loads(json.dumps(to_dict(summarize_cnn())))
    assert document["modules"][0] == {
        "name": "conv", "type": "Conv2d", "total": 40, "trainable": 40, "shared": 0, "uninitialized": 0,
        "inputs": [[2, 1, 8, 8]], "outputs": [[2, 4, 6, 6]], "flops": 5184,
    }  # fmt: skip
    assert document["totals"]["flops"] == 10_944
    assert to_dict(summarize(nn.Linear(1, 1)))["modules"][0]["flops"] is None
    assert torch.is_grad_enabled()
