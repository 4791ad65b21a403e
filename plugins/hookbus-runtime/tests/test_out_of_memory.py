"""Retry and report of out-of-memory errors, with a model that limits the number of samples per forward pass."""

from __future__ import annotations

import logging
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.checkpoint.state import build_checkpoint, write_checkpoint
from hookbus.errors import ConfigError
from hookbus.testing import check_hook, fake_training
from hookbus_runtime import OutOfMemoryHook
from hookbus_runtime.out_of_memory import format_shapes, get_batch_size, merge_outputs, split_batch


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


@pytest.mark.slow
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
        monkeypatch.setattr(torch, "get_device_module", lambda: SimpleNamespace(memory_stats=lambda: stats))
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


Item = namedtuple("Item", ["image", "scale"])
NUMBERS = torch.arange(5.0)


def to_lists(value: Any) -> Any:
    """Convert tensors to lists, so that nested values can be compared."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: to_lists(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(to_lists, value))
    return type(value)(map(to_lists, value)) if isinstance(value, (tuple, list)) else value


class TestSplitBatch:
    @pytest.mark.parametrize(
        ("batch", "parts"),
        [
            (NUMBERS, [[0, 1], [2, 3, 4]]),
            ((NUMBERS, NUMBERS * 2), [([0, 1], [0, 2]), ([2, 3, 4], [4, 6, 8])]),
            ({"x": NUMBERS, "name": "a"}, [{"x": [0, 1], "name": "a"}, {"x": [2, 3, 4], "name": "a"}]),
            ([NUMBERS, list("abcde")], [[[0, 1], ["a", "b"]], [[2, 3, 4], ["c", "d", "e"]]]),
            (Item(NUMBERS, torch.tensor(3.0)), [Item([0, 1], 3.0), Item([2, 3, 4], 3.0)]),
            ((NUMBERS, torch.ones(2)), [([0, 1], [1, 1]), ([2, 3, 4], [1, 1])]),
        ],
    )
    def test_values_with_an_element_per_sample_are_split(self, batch: Any, parts: list[Any]) -> None:
        assert [to_lists(part) for part in split_batch(batch, [2, 3])] == parts


class TestGetBatchSize:
    def test_size_is_the_length_of_the_first_tensor_that_is_no_scalar(self) -> None:
        assert get_batch_size((torch.tensor(1.0), {"x": NUMBERS})) == 5
        assert get_batch_size("text") == 0

    def test_shapes_are_formatted_as_text(self) -> None:
        assert (
            format_shapes((torch.ones(2, 3), {"y": torch.zeros(2, dtype=torch.long)})) == "(2, 3) float32, (2,) int64"
        )


class TestMergeOutputs:
    def test_scalars_are_summed_and_samples_concatenated(self) -> None:
        outputs = [
            {"loss": torch.tensor(1.0), "output": torch.ones(1, 2), "acc": 1.0, "count": torch.tensor(3), "tag": "a"},
            {"loss": torch.tensor(4.0), "output": torch.zeros(2, 2), "acc": 0.25, "count": torch.tensor(5), "tag": "b"},
        ]
        merged = merge_outputs(outputs, [1 / 3, 2 / 3], [1, 2])

        assert merged["loss"].item() == pytest.approx(3.0)
        assert merged["acc"] == pytest.approx(0.5)
        assert merged["output"].tolist() == [[1, 1], [0, 0], [0, 0]]
        assert (merged["count"].item(), merged["tag"]) == (5, "b")
