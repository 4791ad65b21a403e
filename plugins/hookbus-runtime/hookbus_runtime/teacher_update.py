"""Update of a mean teacher (Tarvainen and Valpola, 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["match_tensors", "update_teacher"]


def match_tensors(teacher: nn.Module, student: nn.Module, *, buffers: bool) -> list[tuple[Tensor, Tensor]]:
    """Return the pairs (teacher tensor, student tensor) of equal names.

    Args:
        teacher: Teacher module.
        student: Student module of the same architecture.
        buffers: Whether to include buffers.

    Raises:
        ValueError: If names or shapes differ.
    """
    teachers, students = _get_tensors(teacher, buffers), _get_tensors(student, buffers)
    different = sorted(teachers.keys() ^ students.keys())
    different += [name for name in teachers.keys() & students.keys() if teachers[name].shape != students[name].shape]
    if different:
        raise ValueError(f"teacher and student must have the same architecture, but {', '.join(different)} differ")
    return [(teachers[name], students[name]) for name in teachers]


@torch.no_grad()
def update_teacher(tensor_pairs: list[tuple[Tensor, Tensor]], share: float) -> None:
    """Update the teacher in place: `teacher = (1 - share) * teacher + share * student`.

    Args:
        tensor_pairs: Pairs returned by `match_tensors`.
        share: Weight of the student, between 0 and 1. Integer tensors are copied, and all tensors if `share` is 1.
    """
    for teacher, student in tensor_pairs:
        if share < 1 and teacher.is_floating_point():
            teacher.lerp_(student.to(teacher.dtype), share)
        else:
            teacher.copy_(student)


def _get_tensors(module: nn.Module, buffers: bool) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **(dict(module.named_buffers()) if buffers else {})}
