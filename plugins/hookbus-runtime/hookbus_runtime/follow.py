"""One module follows another: the arithmetic of a mean teacher (Tarvainen and Valpola 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["follow", "pairs"]


def pairs(teacher: nn.Module, student: nn.Module, *, buffers: bool) -> list[tuple[Tensor, Tensor]]:
    """The tensors of a teacher and of its student, matched by name.

    Args:
        teacher, student: modules of the same make.
        buffers: whether buffers belong to it.

    Raises:
        ValueError: their names or shapes differ.
    """
    mine, theirs = _tensors(teacher, buffers), _tensors(student, buffers)
    lacking = sorted(mine.keys() ^ theirs.keys())
    lacking += [name for name in mine.keys() & theirs.keys() if mine[name].shape != theirs[name].shape]
    if lacking:
        raise ValueError(f"teacher and student are not of the same make: {', '.join(lacking)} differ")
    return [(mine[name], theirs[name]) for name in mine]


@torch.no_grad()
def follow(found: list[tuple[Tensor, Tensor]], share: float) -> None:
    """`teacher = (1 - share) * teacher + share * student`; whole numbers are copied, and so is everything at 1."""
    for mine, theirs in found:
        if share < 1 and mine.is_floating_point():
            mine.lerp_(theirs.to(mine.dtype), share)
        else:
            mine.copy_(theirs)


def _tensors(module: nn.Module, buffers: bool) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **(dict(module.named_buffers()) if buffers else {})}
