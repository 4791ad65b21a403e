from __future__ import annotations

import pytest
import torch
from torch import nn

from hookbus_runtime.teacher_update import list_copied, match_tensors, update_teacher


def constant(value: float) -> nn.BatchNorm1d:
    module = nn.BatchNorm1d(1)
    for tensor in (*module.parameters(), *module.buffers()):
        nn.init.constant_(tensor, value)
    return module


def test_weights_are_averaged() -> None:
    teacher, student = constant(0.0), constant(4.0)
    matched = match_tensors(teacher, student, buffers=False)
    update_teacher(matched, 0.25)
    update_teacher(matched, 0.25)

    assert teacher.weight.item() == 1.75  # 0.75 * 1 + 0.25 * 4
    assert teacher.running_mean.item() == 0.0  # type: ignore[union-attr]


def test_buffers_are_averaged_and_integer_buffers_copied() -> None:
    teacher, student = constant(0.0), constant(4.0)
    update_teacher(match_tensors(teacher, student, buffers=True), 0.25)

    assert teacher.running_mean.item() == 1.0  # type: ignore[union-attr]
    assert teacher.num_batches_tracked.item() == 4  # type: ignore[union-attr]


def test_share_of_one_copies_the_student() -> None:
    teacher, student = nn.Linear(2, 2), nn.Linear(2, 2)
    update_teacher(match_tensors(teacher, student, buffers=True), 1)

    assert torch.equal(teacher.weight, student.weight)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int32, torch.bool])
def test_parameters_that_cannot_be_averaged_are_copied(dtype: torch.dtype) -> None:
    def build(value: float) -> nn.Module:
        module = nn.Linear(1, 1)
        module.scale = nn.Parameter(torch.full((2,), value).to(dtype), requires_grad=False)
        return module

    teacher, student = build(0.0), build(1.0)
    update_teacher(match_tensors(teacher, student, buffers=False), 0.25)

    assert torch.equal(teacher.scale.float(), torch.ones(2))  # type: ignore[union-attr, operator]
    assert list_copied(teacher) == [f"scale ({str(dtype).removeprefix('torch.')})"]


def test_complex_parameters_are_averaged() -> None:
    teacher, student = nn.Module(), nn.Module()
    teacher.weight, student.weight = (nn.Parameter(torch.full((1,), value)) for value in (0j, 4j))
    update_teacher(match_tensors(teacher, student, buffers=False), 0.25)

    assert teacher.weight.item() == 1j


def test_expanded_buffers_are_accepted_if_they_are_equal() -> None:
    teacher, student = nn.Module(), nn.Module()
    for module in (teacher, student):
        module.register_buffer("mask", torch.ones(1).expand(3))
    assert match_tensors(teacher, student, buffers=True) == []
    student.register_buffer("mask", torch.zeros(1).expand(3))
    with pytest.raises(ValueError, match="mask of the teacher cannot be updated"):
        match_tensors(teacher, student, buffers=True)


@pytest.mark.parametrize("student", [nn.Linear(3, 2), nn.Linear(2, 2, bias=False)])
def test_modules_of_different_architectures_are_an_error(student: nn.Module) -> None:
    with pytest.raises(ValueError, match="must have the same architecture, but (weight|bias) differ"):
        match_tensors(nn.Linear(2, 2), student, buffers=False)
