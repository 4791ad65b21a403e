"""Summaries of a model and of a configuration, as Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import nn

__all__ = ["format_config", "format_model"]


def format_model(model: nn.Module) -> str:
    """Return a Markdown table of the parameter counts of a model and its child modules, followed by its structure."""
    rows = [("", type(model).__name__, *_count_parameters(model))]
    rows += [(name, type(child).__name__, *_count_parameters(child)) for name, child in model.named_children()]
    lines = ["| module | type | parameters | trainable |", "|---|---|---:|---:|"]
    lines += [f"| {name} | {kind} | {count:,} | {trainable:,} |" for name, kind, count, trainable in rows]
    return "\n".join([*lines, "", *_format_code(str(model))])


def format_config(config: Mapping[str, Any]) -> str:
    """Return a nested configuration as JSON in a Markdown code block."""
    return "\n".join(_format_code(json.dumps(config, indent=2, ensure_ascii=False, default=str)))


def _count_parameters(module: nn.Module) -> tuple[int, int]:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in module.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, trainable in sizes if trainable)


def _format_code(text: str) -> list[str]:
    # Indented, not fenced: the text itself can contain backticks.
    return [f"    {line}" for line in text.splitlines()]
