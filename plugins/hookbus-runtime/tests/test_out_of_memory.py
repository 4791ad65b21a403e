"""Batches that do not fit: a model that has room for so many samples at a time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.errors import ConfigError
from hookbus.state import collect, write_checkpoint
from hookbus.testing import check_hook, fake_training
from hookbus_runtime import OutOfMemoryHook


class Tight(nn.Module):
    """Has room for so many samples."""

    def __init__(self, room: int, *, in_backward: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.room, self.in_backward = room, in_backward
        self.sizes: list[int] = []

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(batch))
        output = self.layers(batch)
        if len(batch) > self.room:
            if not self.in_backward:
                raise torch.OutOfMemoryError("no room")
            output.register_hook(_fail)
            self.layers[2].bias.register_post_accumulate_grad_hook(lambda _: None)
        return output  # type: ignore[no-any-return]


def _fail(grad: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("no room")


class Watch(Hook):
    """Notes the gradients and the outputs of each iteration."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        self.gradients: list[torch.Tensor] = []
        self.outputs: list[Any] = []
        self.path = path

    def after_train_iter(self, run: Run, outputs: Any) -> None:
        assert run.model is not None
        self.gradients.append(torch.cat([each.grad.reshape(-1).clone() for each in run.model.parameters()]))  # type: ignore[union-attr]
        self.outputs.append(outputs)
        if self.path is not None and run.iters_done == 2:
            write_checkpoint(self.path, collect(run), 1)


def loss(reduction: str) -> Any:
    return lambda output, target: nn.functional.mse_loss(output.squeeze(1), target, reduction=reduction)


def train(
    *hooks: Any, model: Tight, sizes: Sequence[int] = (7, 7, 5), reduction: str = "mean", **options: Any
) -> tuple[Run, Watch]:
    watch = options.pop("watch", None) or Watch()
    data = torch.Generator().manual_seed(1)
    run = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        loss(reduction),
        [(torch.randn(size, 3, generator=data), torch.randn(size, generator=data)) for size in sizes],
        epochs=1,
        work_dir=None,
        hooks=[*hooks, watch],
        default_hooks=False,
        device="cpu",
        **options,
    ).fit()
    return run, watch


def test_it_keeps_what_every_hook_promises() -> None:
    check_hook(OutOfMemoryHook)


class TestRetry:
    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    @pytest.mark.parametrize("accumulate", [1, 2])
    @pytest.mark.parametrize("room", [3, 1])
    def test_has_the_gradients_of_the_whole_batch(self, reduction: str, accumulate: int, room: int) -> None:
        _, whole = train(model=Tight(99), reduction=reduction, accumulate=accumulate)
        hook = OutOfMemoryHook(retry=True, reduction=reduction)
        run, parts = train(hook, model=Tight(room), reduction=reduction, accumulate=accumulate)

        assert run.outcome == "finished"
        assert run.steps_done == 3 // accumulate
        for found, expected in zip(parts.gradients, whole.gradients, strict=True):
            torch.testing.assert_close(found, expected)
        for found, expected in zip(parts.outputs, whole.outputs, strict=True):
            torch.testing.assert_close(found["loss"], expected["loss"])
            torch.testing.assert_close(found["output"], expected["output"])

    def test_halves_until_it_fits_and_keeps_to_it(self, caplog: pytest.LogCaptureFixture) -> None:
        hook, model = OutOfMemoryHook(retry=True), Tight(2)
        with caplog.at_level(logging.WARNING, "hookbus"):
            train(hook, model=model, sizes=(7, 7))

        assert model.sizes == [7, 4, 2, 2, 2, 1, 2, 2, 2, 1]
        assert hook.parts == 4
        assert [record.getMessage().rpartition(". ")[2] for record in caplog.records] == [
            "Trying again in 2 parts.",
            "Trying again in 4 parts.",
        ]
        assert "iteration 1, epoch 1, with a batch of (7, 3) float32, (7,) float32." in caplog.text

    def test_works_where_the_backward_did_not_fit(self) -> None:
        _, whole = train(model=Tight(99))
        _, parts = train(OutOfMemoryHook(retry=True), model=Tight(4, in_backward=True))

        for found, expected in zip(parts.gradients, whole.gradients, strict=True):
            torch.testing.assert_close(found, expected)

    def test_ends_where_one_sample_does_not_fit(self) -> None:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            train(OutOfMemoryHook(retry=True), model=Tight(0))

        assert any("The batch cannot be cut any smaller." in note for note in caught.value.__notes__)

    def test_is_not_made_where_the_update_did_not_fit(self) -> None:
        class Fails(Hook):
            def after_optimizer_step(self) -> None:
                raise torch.OutOfMemoryError("no room")

        with pytest.raises(torch.OutOfMemoryError) as caught:
            train(OutOfMemoryHook(retry=True), Fails(), model=Tight(99))
        assert any("The update itself did not fit" in note for note in caught.value.__notes__)

    def test_is_not_made_with_spoilt_gradients_of_a_group(self) -> None:
        class FailsInTheSecond(Hook):
            def after_backward(self, run: Run) -> None:
                if run.iter == 1:
                    raise torch.OutOfMemoryError("no room")

        with pytest.raises(torch.OutOfMemoryError) as caught:
            train(FailsInTheSecond(), OutOfMemoryHook(retry=True), model=Tight(99), accumulate=2)
        assert any(
            "in the middle of an accumulation, whose gradients are spoilt" in note for note in caught.value.__notes__
        )

    def test_goes_on_in_parts_after_a_resume(self, tmp_path: Path) -> None:
        path = tmp_path / "saved.pth"
        _, whole = train(OutOfMemoryHook(retry=True), model=Tight(2), watch=Watch(path))
        model = Tight(2)
        _, rest = train(OutOfMemoryHook(retry=True), model=model, resume=path)

        assert model.sizes == [2, 1, 1, 1]
        assert torch.equal(rest.gradients[0], whole.gradients[2])

    def test_is_refused_in_a_loop_of_ones_own(self) -> None:
        with pytest.raises(
            ConfigError, match="retry cuts the Trainer's own step. In a loop of your own say retry: false"
        ):
            fake_training([OutOfMemoryHook(retry=True)])


class TestReport:
    def test_is_made_where_a_run_fails_for_want_of_memory(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stats = {"allocated_bytes.all.current": 2**31, "allocated_bytes.all.peak": 3 * 2**30}
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator.memory, "memory_stats", lambda: stats)
        with pytest.raises(torch.OutOfMemoryError), HookBus([OutOfMemoryHook()]).run():
            raise torch.OutOfMemoryError("no room")

        assert caplog.messages == [
            "The device is out of memory at iteration 1, epoch 1. allocated 2.00 GiB, at most 3.00 GiB, reserved 0.00 "
            "GiB. Use smaller batches with accumulation, a lower precision, or retry: true of the out_of_memory hook."
        ]

    def test_is_not_made_where_it_fails_for_another_reason(self, caplog: pytest.LogCaptureFixture) -> None:
        with pytest.raises(ZeroDivisionError), HookBus([OutOfMemoryHook()]).run():
            raise ZeroDivisionError

        assert not caplog.records
