from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.checkpoint.state import build_checkpoint, write_checkpoint
from hookbus.errors import ConfigError, HookError
from hookbus_runtime import MeanTeacherHook


class Pair(nn.Module):
    """A student whose weight increases by 1 at each optimizer step, and a teacher with a different weight."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.student.weight)
        nn.init.constant_(self.teacher.weight, 99.0)
        self.teacher.requires_grad_(False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return -self.student(batch).mean()  # type: ignore[no-any-return]


class TeacherRecorder(Hook):
    def __init__(self, path: Path | None = None, at: int = 0) -> None:
        super().__init__()
        self.teachers: list[float] = []
        self.path, self.at = path, at

    def after_train_iter(self, run: Run, model: Pair) -> None:
        self.teachers.append(model.teacher.weight.item())
        if self.path is not None and run.iters_done == self.at:
            write_checkpoint(self.path, build_checkpoint(run), 1)


def train(
    hook: MeanTeacherHook, recorder: TeacherRecorder | None = None, count: int = 4, **options: Any
) -> list[float]:
    model, recorder = Pair(), recorder or TeacherRecorder()
    Trainer(
        model,
        torch.optim.SGD(model.student.parameters(), lr=1.0),
        train_loader=[torch.ones(1, 1)] * count,
        epochs=1,
        work_dir=None,
        hooks=[hook, recorder],
        default_hooks=False,
        device="cpu",
        **options,
    ).fit()
    return recorder.teachers


class TestTeacher:
    def test_teacher_is_initialized_and_updated_at_each_step(self) -> None:
        # The student is 1, 2, 3, 4; the teacher is the mean of old teacher and student.
        assert train(MeanTeacherHook(momentum=0.5)) == [0.5, 1.25, 2.125, 3.0625]

    def test_teacher_is_updated_at_the_interval(self) -> None:
        assert train(MeanTeacherHook(momentum=0.5, interval=2)) == [0.0, 1.0, 1.0, 2.5]

    def test_teacher_is_updated_per_step_and_not_per_micro_batch(self) -> None:
        assert train(MeanTeacherHook(momentum=0.5), accumulate=2) == [0.0, 0.5, 0.5, 1.25]

    def test_teacher_is_the_same_after_a_resume(self, tmp_path: Path) -> None:
        path = tmp_path / "saved.pth"
        uninterrupted = train(MeanTeacherHook(momentum=0.5, interval=2), TeacherRecorder(path, at=3))

        assert train(MeanTeacherHook(momentum=0.5, interval=2), resume=path) == uninterrupted[3:]

    def test_parameters_that_cannot_be_averaged_are_named_once(self, caplog: pytest.LogCaptureFixture) -> None:
        class Quantized(nn.Linear):
            def __init__(self) -> None:
                super().__init__(1, 1)
                self.scale = nn.Parameter(torch.ones(1).to(torch.float8_e4m3fn), requires_grad=False)

        model = nn.ModuleDict({"teacher": Quantized(), "student": Quantized()})
        bus = HookBus([MeanTeacherHook()])
        with bus.run(model=model, iterations=2) as run:
            step = bus.action("train_step", lambda batch: None)
            for _, batch in run.batches([1, 2]):
                bus.emit("before_train_iter")
                step(batch)
                bus.emit("after_train_iter")

        messages = [message for message in caplog.messages if "cannot be averaged" in message]
        assert messages == ["mean_teacher: cannot be averaged and are copied: scale (float8_e4m3fn)."]

    def test_teacher_and_student_names_can_be_configured(self) -> None:
        model = nn.ModuleDict({"slow": nn.Linear(1, 1), "fast": nn.Linear(1, 1)})
        bus = HookBus([MeanTeacherHook(teacher="slow", student="fast")])
        with bus.run(model=model):
            step = bus.action("train_step", lambda batch: None)
            bus.emit("before_train_iter")
            step(None)
            bus.emit("after_train_iter")

        assert torch.allclose(model["slow"].weight, model["fast"].weight)


class Trio(Pair):
    """A student and two teachers."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Linear(1, 1, bias=False).requires_grad_(False)


class TestTwoHooks:
    @staticmethod
    def train(*hooks: Hook) -> Trio:
        model = Trio()
        optimizer = torch.optim.SGD(model.student.parameters(), lr=1.0)
        data = [torch.ones(1, 1)] * 4
        options = {"train_loader": data, "epochs": 1, "work_dir": None, "default_hooks": False, "device": "cpu"}
        Trainer(model, optimizer, hooks=list(hooks), **options).fit()
        return model

    @pytest.mark.parametrize("order", [1, -1])
    def test_two_teachers_of_a_student_are_updated_independently(self, order: int) -> None:
        hooks = [
            MeanTeacherHook(name="fast", momentum=0.5),
            MeanTeacherHook(name="slow", momentum=0.25, teacher="slow"),
        ]
        model = self.train(*hooks[::order])
        assert model.teacher.weight.item() == 3.0625
        assert model.slow.weight.item() == 1.94921875  # 0.25, 0.6875, 1.265625, 0.75 * 1.265625 + 0.25 * 4

    @pytest.mark.parametrize(
        "settings",
        [{}, {"teacher": "slow", "student": "teacher"}],
        ids=["the same teacher", "a teacher as the student"],
    )
    @pytest.mark.parametrize("order", [1, -1])
    def test_hooks_whose_order_would_matter_are_rejected(self, order: int, settings: dict[str, str]) -> None:
        hooks = [MeanTeacherHook(name="a"), MeanTeacherHook(name="b", **settings)]
        with pytest.raises(ConfigError, match="shares parameters: the result would depend on the order of the hooks"):
            self.train(*hooks[::order])


class TestLoops:
    def test_teacher_is_updated_in_a_custom_loop_with_the_action(self) -> None:
        model, recorder = Pair(), TeacherRecorder()
        optimizer = torch.optim.SGD(model.student.parameters(), lr=1.0)
        bus = HookBus([MeanTeacherHook(momentum=0.5), recorder])

        def step(batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()

        with bus.run(model=model, optimizer=optimizer):
            train_step = bus.action("train_step", step)
            for i in range(3):
                bus.emit("before_train_iter", batch_idx=i)
                train_step(torch.ones(1, 1))
                bus.emit("after_train_iter", batch_idx=i)

        assert recorder.teachers == [0.5, 1.25, 2.125]

    def test_teacher_is_updated_per_iteration_without_an_optimizer(self) -> None:
        model, recorder = Pair(), TeacherRecorder()
        bus = HookBus([MeanTeacherHook(momentum=0.5, interval=2), recorder])
        with bus.run(model=model):
            step = bus.action("train_step", lambda batch: nn.init.constant_(model.student.weight, batch))
            for i in range(3):
                bus.emit("before_train_iter", batch_idx=i)
                step(float(i + 1))
                bus.emit("after_train_iter", batch_idx=i)

        assert recorder.teachers == [0.0, 1.0, 1.0]

    def test_custom_loop_without_the_action_is_an_error(self) -> None:
        bus = HookBus([MeanTeacherHook()])
        with bus.run(model=Pair()):
            bus.emit("before_train_iter")
            with pytest.raises(HookError, match=r'step = bus\.action\("train_step", my_step\), and call step\(batch\)'):
                bus.emit("after_train_iter")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Linear(1, 1), "has no attribute `teacher`"),
        (nn.ModuleDict({"teacher": nn.Linear(2, 1), "student": nn.Linear(1, 1)}), "weight differ"),
        (None, "the run has no model"),
    ],
)
def test_model_without_teacher_and_student_is_an_error(model: Any, reason: str) -> None:
    bus = HookBus([MeanTeacherHook()])
    with (
        pytest.raises(HookError, match=f"updates 'teacher' of the model from 'student': .*{reason}"),
        bus.run(model=model),
    ):
        bus.emit("before_train_iter")
