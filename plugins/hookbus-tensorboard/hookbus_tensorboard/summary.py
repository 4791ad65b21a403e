"""What a model consists of, as a text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import nn

__all__ = ["config_text", "model_text"]


def model_text(model: nn.Module) -> str:
    """The parameters of a model and of its parts, as a Markdown table, and its structure.

    Args:
        model: the model.
    """
    rows = [("", type(model).__name__, *_counts(model))]
    rows += [(name, type(child).__name__, *_counts(child)) for name, child in model.named_children()]
    lines = ["| part | type | parameters | to train |", "|---|---|---:|---:|"]
    lines += [f"| {name} | {kind} | {count:,} | {trained:,} |" for name, kind, count, trained in rows]
    return "\n".join([*lines, "", *_as_code(str(model))])


def config_text(config: Mapping[str, Any]) -> str:
    """A configuration as Markdown: what Markdown shows as it is, an indented block.

    Args:
        config: plain values, nested.
    """
    return "\n".join(_as_code(json.dumps(config, indent=2, ensure_ascii=False, default=str)))


def _counts(module: nn.Module) -> tuple[int, int]:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in module.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, trained in sizes if trained)


def _as_code(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]
