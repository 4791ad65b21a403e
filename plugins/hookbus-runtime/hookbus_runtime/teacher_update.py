"""Update of a mean teacher (Tarvainen and Valpola, 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

AVERAGED_DTYPES = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}
)
"""Types that can be interpolated; floating-point types of 8 bits and less cannot."""


def match_tensors(teacher: nn.Module, student: nn.Module, *, buffers: bool) -> list[tuple[Tensor, Tensor]]:
    """Return the pairs (teacher tensor, student tensor) of equal names, without expanded tensors of equal values.

    Raises:
        ValueError: If names or shapes differ, or an expanded tensor, which cannot be updated, has another value.
    """
    teachers, students = _get_tensors(teacher, buffers), _get_tensors(student, buffers)
    different = sorted(teachers.keys() ^ students.keys())
    different += [name for name in teachers.keys() & students.keys() if teachers[name].shape != students[name].shape]
    if different:
        raise ValueError(f"teacher and student must have the same architecture, but {', '.join(different)} differ")
    expanded = [name for name in teachers if _is_expanded(teachers[name])]
    if unequal := [name for name in expanded if not torch.equal(teachers[name], students[name])]:
        raise ValueError(f"{', '.join(unequal)} of the teacher cannot be updated, because its elements share memory")
    return [(teachers[name], students[name]) for name in teachers if name not in expanded]


def list_copied(teacher: nn.Module) -> list[str]:
    """Return a description of each parameter of the teacher that cannot be averaged and is copied."""
    named = teacher.named_parameters()
    return [f"{name} ({str(p.dtype).removeprefix('torch.')})" for name, p in named if not _can_be_averaged(p)]


@torch.no_grad()
def update_teacher(tensor_pairs: list[tuple[Tensor, Tensor]], share: float) -> None:
    """Update the teacher in place: `teacher = (1 - share) * teacher + share * student`.

    Args:
        tensor_pairs: Pairs returned by `match_tensors`.
        share: Weight of the student, between 0 and 1. Tensors that cannot be averaged, such as integer and fp8 tensors,
            are copied, and all tensors if `share` is 1.
    """
    for teacher, student in tensor_pairs:
        if share < 1 and _can_be_averaged(teacher):
            teacher.lerp_(student.to(teacher.dtype), share)
        else:
            teacher.copy_(student)


def _get_tensors(module: nn.Module, buffers: bool) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **(dict(module.named_buffers()) if buffers else {})}


def _can_be_averaged(tensor: Tensor) -> bool:
    return tensor.dtype in AVERAGED_DTYPES and tensor.layout is torch.strided


def _is_expanded(tensor: Tensor) -> bool:
    """Return whether elements of a tensor share memory, so that it cannot be changed in place."""
    if tensor.layout is not torch.strided:
        return False
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
