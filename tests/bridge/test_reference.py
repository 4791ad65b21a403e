"""The conformance check passes for a small trainer, and each fault of its bridge fails the checks of its subject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hookbus._run.run import Run
from hookbus.bridge import Capabilities
from hookbus.errors import CheckpointRefusedError
from hookbus.testing import bridge_conformance
from hookbus.testing.bridges.conformance import BridgeCheck
from tests.foreign_trainer import CAPABILITIES, ForeignAdapter, ForeignBridge, ForeignTrainer

CHECKS = bridge_conformance(ForeignAdapter())


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_bridge_passes(check: BridgeCheck, published: Path, tmp_path: Path) -> None:
    check(tmp_path)


# -- bridges with another record, whose trainer acts accordingly ---------------------------------------


def describe(**changes: Any) -> Capabilities:
    """Return the record of the trainer with changes."""
    return replace(CAPABILITIES, **changes)


class StopsAfterEpochs(ForeignBridge):
    """Bridge of a trainer that stops and saves after an epoch only, and carries out no other request."""

    capabilities = describe(requests={"stop": "epoch", "save": "epoch"})

    def stop(self, reasons: Sequence[str]) -> None:
        self.is_stopping = True

    def save(self, reasons: Sequence[str]) -> None:
        """Nothing: the trainer saves after each epoch."""

    def on_train_epoch_end(self, trainer: ForeignTrainer) -> None:
        super().on_train_epoch_end(trainer)
        trainer.should_stop = getattr(self, "is_stopping", False)


class EmitsLess(ForeignBridge):
    """Bridge that emits no points between the start and the end of an iteration, without batch, outputs and loss."""

    capabilities = describe(
        missing=dict.fromkeys(("after_forward", "after_backward", "before_val_iter", "after_val_iter"), "Too fast."),
        requests={},
        batch=False,
        outputs=False,
        loss=False,
        gradients=("before_optimizer_step", "after_train_iter"),
        checkpoints=("host",),
    )

    def on_batch_start(self, trainer: ForeignTrainer, batch: Any) -> None:
        self.bus.emit("before_train_iter")

    def on_loss(self, trainer: ForeignTrainer, batch: Any, outputs: Tensor, loss: Tensor) -> None: ...
    def on_gradients(self, trainer: ForeignTrainer, batch: Any, outputs: Tensor, loss: Tensor) -> None: ...
    def on_validation_batch_start(self, trainer: ForeignTrainer, batch: Any) -> None: ...
    def on_validation_batch_end(self, trainer: ForeignTrainer, batch: Any, outputs: Tensor, loss: Tensor) -> None: ...

    def on_batch_end(self, trainer: ForeignTrainer, batch: Any, outputs: Tensor | None, loss: Tensor | None) -> None:
        self.bus.emit("after_train_iter")


# -- bridges with a fault, and the checks that they fail -----------------------------------------------


class EmitsTwice(ForeignBridge):
    capabilities = CAPABILITIES

    def on_gradients(self, trainer: ForeignTrainer, batch: Any, outputs: Tensor, loss: Tensor) -> None:
        for _ in range(2):
            super().on_gradients(trainer, batch, outputs, loss)


class Forgets(ForeignBridge):
    capabilities = CAPABILITIES

    def on_validation_batch_end(self, trainer: ForeignTrainer, batch: Any, outputs: Tensor, loss: Tensor) -> None:
        """Emit nothing."""


class ScalesLoss(ForeignBridge):
    capabilities = CAPABILITIES

    def on_batch_end(self, trainer: ForeignTrainer, batch: Any, outputs: Tensor | None, loss: Tensor | None) -> None:
        super().on_batch_end(trainer, batch, outputs, loss if loss is None else loss / trainer.accumulate)


class Miscounts(ForeignBridge):
    capabilities = CAPABILITIES

    def open(self, **arguments: Any) -> Run:
        return super().open(**arguments, batch_size=lambda batch: 1)


class LeavesHooks(ForeignBridge):
    capabilities = CAPABILITIES

    def on_fit_start(self, trainer: ForeignTrainer) -> None:
        super().on_fit_start(trainer)
        self.handle = trainer.model.register_forward_hook(lambda module, inputs, outputs: None)

    def on_fit_end(self, trainer: ForeignTrainer) -> None:
        self.handle.remove()
        super().on_fit_end(trainer)


class LeavesMethod(ForeignBridge):
    capabilities = CAPABILITIES

    def on_fit_start(self, trainer: ForeignTrainer) -> None:
        super().on_fit_start(trainer)
        step = trainer.optimizer.step
        trainer.optimizer.step = lambda: step()  # type: ignore[method-assign, assignment]


class ReplacesError(ForeignBridge):
    capabilities = CAPABILITIES

    def on_exception(self, trainer: ForeignTrainer, error: BaseException) -> None:
        self.close(RuntimeError("the training has failed"))


class LosesState(ForeignBridge):
    capabilities = CAPABILITIES

    def on_load(self, trainer: ForeignTrainer, checkpoint: Mapping[str, Any]) -> None:
        """Ignore the state in the checkpoint."""


class ValidatesRawWeights(ForeignBridge):
    capabilities = CAPABILITIES

    def on_validation_start(self, trainer: ForeignTrainer) -> None:
        super().on_validation_start(trainer)
        self.exchange(trainer, self.active_run.weights.raw())

    def on_validation_end(self, trainer: ForeignTrainer) -> None:
        self.exchange(trainer, self.kept)
        super().on_validation_end(trainer)

    def exchange(self, trainer: ForeignTrainer, weights: Mapping[str, Tensor]) -> None:
        self.kept = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        with torch.no_grad():
            for name, tensor in trainer.model.named_parameters():
                tensor.copy_(weights[name])


class IgnoresStop(ForeignBridge):
    capabilities = CAPABILITIES

    def stop(self, reasons: Sequence[str]) -> None: ...


class SavesRefused(ForeignBridge):
    capabilities = CAPABILITIES

    def on_save(self, trainer: ForeignTrainer, checkpoint: dict[str, Any]) -> None:
        with suppress(CheckpointRefusedError):
            super().on_save(trainer, checkpoint)


class IgnoresSkip(ForeignBridge):
    capabilities = CAPABILITIES

    def on_batch_start(self, trainer: ForeignTrainer, batch: Any) -> None:
        self.bus.emit("before_train_iter", batch=batch)


class TrainsOnInValidation(ForeignBridge):
    capabilities = CAPABILITIES

    def on_validation_batch_end(self, trainer: ForeignTrainer, batch: Any, outputs: Tensor, loss: Tensor) -> None:
        super().on_validation_batch_end(trainer, batch, outputs, loss)
        torch.rand(1)  # the next iterations have another order of the samples, and another dropout


def with_record(**changes: Any) -> type[ForeignBridge]:
    """Return a bridge whose record is wrong."""
    return type("Lies", (ForeignBridge,), {"capabilities": describe(**changes)})


DIVERGES = {"parity", "records", "gradients", "skip", "invalid_loss_skip"}
STOPS = {"stop", "invalid_loss_stop"}
RESUMES = {"resume_host", "resume_after_failure_host"}
FAULTS: dict[str, tuple[type[ForeignBridge], set[str]]] = {
    "a point is emitted twice": (EmitsTwice, {"order", "order_with_accumulation"}),
    "a point is not emitted": (Forgets, {"record", "order", "order_with_accumulation"}),
    "the loss is scaled": (ScalesLoss, {"losses", "records"}),
    "samples are miscounted": (Miscounts, {"counts"}),
    "a hook of torch is left": (LeavesHooks, {"failure"}),
    "a method is not restored": (LeavesMethod, {"failure"}),
    "the error is replaced": (ReplacesError, {"failure"}),
    "the state is lost": (LosesState, {"record", *RESUMES}),
    "raw weights are validated": (ValidatesRawWeights, {"averaged_weights", "records"}),
    "stops are ignored": (IgnoresStop, {*STOPS, "refused_save"}),
    "a refused checkpoint is saved": (SavesRefused, {"refused_save"}),
    "skips are ignored": (IgnoresSkip, {"skip"}),
    "a validation draws random numbers": (TrainsOnInValidation, {*DIVERGES, "validation"}),
    "the record lists a point as missing": (with_record(missing={"after_backward": "No."}), {"record"}),
    "the record lists no batch": (with_record(batch=False), {"batches"}),
    "the record lists no gradients": (with_record(gradients=("after_train_iter",)), {"gradients"}),
    "the record lists another time": (with_record(requests={**CAPABILITIES.requests, "stop": "epoch"}), STOPS),
}


def find_failures(bridge: type[ForeignBridge], directory: Path) -> set[str]:
    """Return the names of the checks that a bridge does not pass, apart from the discovery of its record."""
    failures = set()
    for check in bridge_conformance(ForeignAdapter(bridge)):
        try:
            if check.name != "discovery":
                check(directory / check.name)
        except Exception:
            failures.add(check.name)
    return failures


@pytest.mark.slow
@pytest.mark.parametrize("bridge", [StopsAfterEpochs, EmitsLess])
def test_bridge_of_a_limited_trainer_passes(bridge: type[ForeignBridge], published: Path, tmp_path: Path) -> None:
    assert find_failures(bridge, tmp_path) == set()


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_fails_the_checks_of_its_subject(fault: str, published: Path, tmp_path: Path) -> None:
    bridge, expected = FAULTS[fault]
    assert find_failures(bridge, tmp_path) == expected
