"""Retry and report of out-of-memory errors, with a model that limits the number of samples per forward pass."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.checkpoint.state import build_checkpoint, write_checkpoint
from hookbus.errors import ConfigError
from hookbus.testing import check_hook, fake_training
from hookbus_runtime import OutOfMemoryHook


class LimitedModel(nn.Module):
    """Raise an out-of-memory error for batches of more than `capacity` samples."""

    def __init__(self, capacity: int, *, in_backward: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.capacity, self.in_backward = capacity, in_backward
        self.sizes: list[int] = []

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(batch))
        output = self.layers(batch)
        if len(batch) > self.capacity:
            if not self.in_backward:
                raise torch.OutOfMemoryError("simulated")
            output.register_hook(_fail)
            self.layers[2].bias.register_post_accumulate_grad_hook(lambda _: None)
        return output  # type: ignore[no-any-return]


def _fail(grad: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("simulated")


class GradientRecorder(Hook):
    """Record the gradients and the outputs of each iteration."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        self.gradients: list[torch.Tensor] = []
        self.outputs: list[Any] = []
        self.path = path

    def after_train_iter(self, run: Run, outputs: Any) -> None:
        assert run.model is not None
        self.gradients.append(torch.cat([p.grad.reshape(-1).clone() for p in run.model.parameters()]))  # type: ignore[union-attr]
        self.outputs.append(outputs)
        if self.path is not None and run.iters_done == 2:
            write_checkpoint(self.path, build_checkpoint(run), 1)


def loss(reduction: str) -> Any:
    return lambda output, target: nn.functional.mse_loss(output.squeeze(1), target, reduction=reduction)


def train(
    *hooks: Any, model: LimitedModel, sizes: Sequence[int] = (7, 7, 5), reduction: str = "mean", **options: Any
) -> tuple[Run, GradientRecorder]:
    recorder = options.pop("recorder", None) or GradientRecorder()
    data = torch.Generator().manual_seed(1)
    run = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        loss(reduction),
        [(torch.randn(size, 3, generator=data), torch.randn(size, generator=data)) for size in sizes],
        epochs=1,
        work_dir=None,
        hooks=[*hooks, recorder],
        default_hooks=False,
        device="cpu",
        **options,
    ).fit()
    return run, recorder


def test_hook_passes_the_conformance_checks() -> None:
    check_hook(OutOfMemoryHook)


def test_only_one_hook_repeats_steps() -> None:
    with pytest.raises(ConfigError, match="hook 'a' .*retry: hook 'b' also repeats steps"):
        train(OutOfMemoryHook(retry=True, name="a"), OutOfMemoryHook(retry=True, name="b"), model=LimitedModel(99))
    one = [OutOfMemoryHook(retry=True, name="a"), OutOfMemoryHook(name="b")]
    for hooks in (one, one[::-1]):
        run, _ = train(*hooks, model=LimitedModel(2))
        assert run.outcome == "finished"


class TestRetry:
    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    @pytest.mark.parametrize("accumulate", [1, 2])
    @pytest.mark.parametrize("capacity", [3, 1])
    def test_parts_have_the_gradients_of_the_whole_batch(self, reduction: str, accumulate: int, capacity: int) -> None:
        _, whole = train(model=LimitedModel(99), reduction=reduction, accumulate=accumulate)
        hook = OutOfMemoryHook(retry=True, reduction=reduction)
        run, parts = train(hook, model=LimitedModel(capacity), reduction=reduction, accumulate=accumulate)

        assert run.outcome == "finished"
        assert run.steps_done == 3 // accumulate
        for actual, expected in zip(parts.gradients, whole.gradients, strict=True):
            torch.testing.assert_close(actual, expected)
        for actual, expected in zip(parts.outputs, whole.outputs, strict=True):
            torch.testing.assert_close(actual["loss"], expected["loss"])
            torch.testing.assert_close(actual["output"], expected["output"])

    def test_parts_are_doubled_until_they_fit_and_remain(self, caplog: pytest.LogCaptureFixture) -> None:
        hook, model = OutOfMemoryHook(retry=True), LimitedModel(2)
        with caplog.at_level(logging.WARNING, "hookbus"):
            train(hook, model=model, sizes=(7, 7))

        assert model.sizes == [7, 4, 2, 2, 2, 1, 2, 2, 2, 1]
        assert hook.parts == 4
        assert [record.getMessage().rpartition(". ")[2] for record in caplog.records] == [
            "The step is repeated in 2 parts.",
            "The step is repeated in 4 parts.",
        ]
        assert "iteration 1, epoch 1, with a batch of (7, 3) float32, (7,) float32." in caplog.text

    def test_failed_backward_pass_is_repeated(self) -> None:
        _, whole = train(model=LimitedModel(99))
        _, parts = train(OutOfMemoryHook(retry=True), model=LimitedModel(4, in_backward=True))

        for actual, expected in zip(parts.gradients, whole.gradients, strict=True):
            torch.testing.assert_close(actual, expected)

    def test_error_for_a_single_sample_is_raised(self) -> None:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            train(OutOfMemoryHook(retry=True), model=LimitedModel(0))

        assert any("The batch cannot be split further." in note for note in caught.value.__notes__)

    def test_failed_optimizer_step_is_not_repeated(self) -> None:
        class FailingHook(Hook):
            def after_optimizer_step(self) -> None:
                raise torch.OutOfMemoryError("simulated")

        with pytest.raises(torch.OutOfMemoryError) as caught:
            train(OutOfMemoryHook(retry=True), FailingHook(), model=LimitedModel(99))
        assert any("The optimizer step itself exceeded the memory" in note for note in caught.value.__notes__)

    def test_step_is_not_repeated_after_gradients_in_an_accumulation(self) -> None:
        class FailingSecondIteration(Hook):
            def after_backward(self, run: Run) -> None:
                if run.iter == 1:
                    raise torch.OutOfMemoryError("simulated")

        with pytest.raises(torch.OutOfMemoryError) as caught:
            train(FailingSecondIteration(), OutOfMemoryHook(retry=True), model=LimitedModel(99), accumulate=2)
        assert any("during an accumulation, whose gradients are corrupted" in note for note in caught.value.__notes__)

    def test_number_of_parts_is_restored(self, tmp_path: Path) -> None:
        path = tmp_path / "saved.pth"
        _, whole = train(OutOfMemoryHook(retry=True), model=LimitedModel(2), recorder=GradientRecorder(path))
        model = LimitedModel(2)
        _, resumed = train(OutOfMemoryHook(retry=True), model=model, resume=path)

        assert model.sizes == [2, 1, 1, 1]
        assert torch.equal(resumed.gradients[0], whole.gradients[2])

    def test_retry_in_a_custom_loop_is_an_error(self) -> None:
        with pytest.raises(
            ConfigError, match="`retry` splits the step of the Trainer, got a custom loop. Set `retry: false`"
        ):
            fake_training([OutOfMemoryHook(retry=True)])


class TestReport:
    def test_out_of_memory_error_is_reported(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stats = {"allocated_bytes.all.current": 2**31, "allocated_bytes.all.peak": 3 * 2**30}
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator.memory, "memory_stats", lambda: stats)
        with pytest.raises(torch.OutOfMemoryError), HookBus([OutOfMemoryHook()]).run():
            raise torch.OutOfMemoryError("simulated")

        assert caplog.messages == [
            "The device is out of memory at iteration 1, epoch 1. allocated 2.00 GiB, peak 3.00 GiB, reserved 0.00 "
            "GiB. Use smaller batches with accumulation or a lower precision, or set `retry: true` of out_of_memory."
        ]

    def test_other_errors_are_not_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        with pytest.raises(ZeroDivisionError), HookBus([OutOfMemoryHook()]).run():
            raise ZeroDivisionError

        assert not caplog.records
