"""Bridge of the Runner: begins and ends the runs, emits the events, and carries out requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from mmengine.dist import is_main_process
from mmengine.fileio import join_path
from mmengine.hooks import CheckpointHook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapperDict
from mmengine.runner import BaseLoop

from hookbus import Hook
from hookbus.bridge import Bridge
from hookbus.distributed import unwrap_model
from hookbus.errors import ConfigError
from hookbus_mmengine.callbacks import BridgeHook
from hookbus_mmengine.capabilities import CAPABILITIES
from hookbus_mmengine.kept_files import KeptFiles
from hookbus_mmengine.loops import TrainingEnd, TrainingLoop
from hookbus_mmengine.passes import observe_passes
from hookbus_mmengine.safe_types import allow_checkpoint_types
from hookbus_mmengine.updates import Updates

if TYPE_CHECKING:
    from hookbus import Run

KEY = "hookbus"
"""Key of the state in the checkpoints of the Runner."""


class MMEngineBridge(Bridge):
    """Run of a bus whose loops are those of a Runner of MMEngine.

    The arguments are those of `hookbus.bridge.Bridge`.

    Attributes:
        batch: Batch of the iteration in progress.
        hook: Hook of MMEngine that calls the bridge.
    """

    capabilities = CAPABILITIES
    metric_prefixes = ("",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.hook = BridgeHook(self)
        self._loop: TrainingLoop | None = None
        self._loaded: Mapping[str, Any] = {}  # entry of the checkpoint that the Runner has loaded
        self._position: Mapping[str, Any] = {}  # what the run has restored of the loop, while it begins
        self._state: dict[str, Any] = {}  # entry of the checkpoint that is being saved
        self._kept_files: list[KeptFiles] = []
        self._reported: set[str] = set()  # results that are not numbers
        self.batch: Any = None

    def attach(self) -> None:
        """Register the hook of the bridge with the Runner.

        Raises:
            ConfigError: If another bridge is registered, or an entry of `custom_hooks` is to build one.
        """
        if any(isinstance(hook, BridgeHook) for hook in self.host.hooks):
            raise ConfigError(
                [
                    "bus.attach: the Runner should be connected with one bus, whose state its checkpoints contain, got "
                    "a second one. Register all hooks with the bus of the first bus.attach, or in custom_hooks."
                ]
            )
        allow_checkpoint_types()
        observe_passes()
        self.host.register_hook(self.hook)

    def detach(self) -> None:
        """Remove the hook from the Runner, and undo `replace`."""
        super().detach()
        if self.hook in self.host.hooks:
            self.host.hooks.remove(self.hook)

    def connect(self, runner: Any) -> None:
        """Observe the loops of the Runner from their start to their end, before a training, validation or test.

        Args:
            runner: The Runner.
        """
        self.host = runner
        super().detach()  # what an earlier call has left, in a training that was not started
        loops = {"train": runner._train_loop, "val": runner._val_loop, "test": runner._test_loop}
        for mode, loop in loops.items():
            if isinstance(loop, BaseLoop):  # a configuration until it is needed
                self.replace(loop, "run", partial(self._guard, mode))

    def _guard(self, mode: str, original: Callable[[], Any]) -> Callable[[], Any]:
        """Return the `run` of a loop that begins and ends the run of the bus with it."""

        def run() -> Any:
            if self.is_open:  # a validation of the training
                return self._validate_in_training(original)
            try:
                if mode != "train":
                    self._begin_standalone(mode)
                result = self._train(original) if mode == "train" else original()
                self.close()
            except BaseException as error:
                self.close(error)
                raise
            finally:
                super(MMEngineBridge, self).detach()
            return result

        return run

    # -- training ----------------------------------------------------------------------------

    def _train(self, original: Callable[[], Any]) -> Any:
        """Train until the end, or until the iteration at which a hook has stopped the training."""
        try:
            with self.omit_refused_save():
                result = original()
                if self.loop.is_stopped_early:
                    self.report_stop()  # a hook such as MMEngine's EarlyStoppingHook
                return result
        except TrainingEnd:
            self.host.call_hook("after_train")
            return self.host.model
        for hook in self.host.hooks:
            if not isinstance(hook, CheckpointHook):  # it would publish the refused checkpoint
                hook.after_train(self.host)
        return self.host.model

    def begin_training(self) -> None:
        """Begin the run, after the Runner has loaded its checkpoint, and continue at its position."""
        runner, loop = self.host, self.host.train_loop
        self._loop, self._kept_files = TrainingLoop(self, loop), []
        self._check(runner)
        Updates(self, runner.model).attach(self._wrappers())
        self.replace(runner, "save_checkpoint", self._save_with_state)
        if runner.iter:
            self.set_state(self._loaded)
        run = self.open(**self._describe_training())
        if self.checkpoints == "hookbus" and run.iters_done:
            self._place(run)
        if runner.iter:
            self._loop.resume(self._position)
        self._loaded = self._position = {}

    def _check(self, runner: Any) -> None:
        """Raise a `ConfigError` if hooks schedule validations without validation data, or two parties resume."""
        if self.checkpoints == "hookbus" and runner.iter:
            raise ConfigError(
                [
                    f"resume: the Runner has resumed at iteration {runner.iter}, got checkpoints='hookbus'. Remove "
                    "resume=True from the Runner, and pass resume='auto' to bus.attach."
                ]
            )
        scheduling = [
            name for name, hook in self.bus.hooks.items() if isinstance(hook, Hook) and hook.schedules_validation
        ]
        if scheduling and runner.val_loop is None:
            raise ConfigError(
                [
                    f"hook {scheduling[0]!r}: schedules validations, but the Runner has none, got val_dataloader=None. "
                    "Pass val_dataloader, val_cfg and val_evaluator."
                ]
            )

    def _describe_training(self) -> dict[str, Any]:
        """Return the arguments of `bus.open` for the training."""
        runner, loop, by_epoch = self.host, self.host.train_loop, self.loop.by_epoch
        optimizers = {name: wrapper.optimizer for name, wrapper in self._wrappers().items()}
        return {
            "model": runner.model,
            "optimizer": optimizers.get("", optimizers),
            "scaler": getattr(runner.optim_wrapper, "loss_scaler", None),
            "epochs": loop.max_epochs if by_epoch else None,
            "iterations": None if by_epoch else loop.max_iters,
            "train_loader": loop.dataloader,
            "val_loader": None if runner.val_loop is None else runner.val_dataloader,
            "state": {"mmengine": (self._get_position, self._keep_position)},
        }

    def _get_position(self) -> dict[str, Any]:
        """Return the position of the loop, and what the Runner does not save in a checkpoint of the checkpoint hook."""
        state = self.loop.state_dict()
        if self.checkpoints == "hookbus":
            state["schedulers"] = [scheduler.state_dict() for scheduler in self._schedulers()]
        return state

    def _place(self, run: Run) -> None:
        """Set the position of the Runner to that of a checkpoint of the checkpoint hook."""
        runner, loop = self.host, self.host.train_loop
        loop._epoch, loop._iter = run.epochs_done if self.loop.by_epoch else 0, run.iters_done
        for scheduler, state in zip(self._schedulers(), self._position["schedulers"], strict=True):
            scheduler.load_state_dict(state)
        runner.optim_wrapper.initialize_count_status(runner.model, loop.iter, loop.max_iters)

    def _schedulers(self) -> list[Any]:
        """Return the schedulers of all optimizers."""
        schedulers = self.host.param_schedulers or []
        return list(chain(*schedulers.values())) if isinstance(schedulers, dict) else list(schedulers)

    def describe_lr_schedule(self) -> str:
        """Return the schedulers that the Runner steps, and how to train without them; "" if there are none."""
        names = ", ".join(type(part).__name__ for part in self._schedulers() if part.param_name == "lr")
        return f"the scheduler {names} of the Runner. Set param_scheduler=None" if names else ""

    def _wrappers(self) -> dict[str, Any]:
        """Return the optimizer wrappers by name; "" for the only one."""
        wrapper = self.host.optim_wrapper
        return dict(wrapper.items()) if isinstance(wrapper, OptimWrapperDict) else {"": wrapper}

    @property
    def loop(self) -> TrainingLoop:
        """Control of the training loop, of the current or last training."""
        assert self._loop is not None
        return self._loop

    def begin_epoch(self) -> None:
        """Emit the points before an epoch."""
        if not self._kept_files:  # not in `before_train`, in which `CheckpointHook` creates its file backend
            self._keep_files()
        self.bus.emit("before_epoch")
        self.bus.emit("before_train_epoch")
        self.loop.begin_epoch()

    def begin_iteration(self, batch: Any) -> None:
        """Emit `before_train_iter`."""
        self.batch = batch
        self.bus.emit("before_train_iter", batch=batch)

    def end_iteration(self, outputs: Any) -> None:
        """Emit `after_train_iter`."""
        batch, self.batch = self.batch, None
        self.bus.emit("after_train_iter", batch=batch, outputs=outputs or None)

    # -- evaluation --------------------------------------------------------------------------

    def _begin_standalone(self, mode: str) -> None:
        """Begin a run that only evaluates, with the averages of the loaded checkpoint."""
        loop = self.host.val_loop if mode == "val" else self.host.test_loop
        if self._loaded:
            self.set_state({name: value for name, value in self._loaded.items() if name != "state"})
        self.open(mode=mode, model=self.host.model, val_loader=loop.dataloader)

    def _validate_in_training(self, original: Callable[[], Any]) -> Any:
        """Validate, and end the epoch whose last part this is."""
        metrics = original()
        if self.loop.is_ending_epoch:
            self.loop.end_epoch()
        return metrics

    def begin_evaluation(self, kind: str) -> None:
        """Begin a validation or test."""
        self.active_run.begin_validation()
        self.bus.emit("before_val_epoch" if kind == "val" else "before_test_epoch")

    def end_evaluation(self, kind: str, metrics: Mapping[str, Any]) -> None:
        """End a validation or test.

        Args:
            kind: "val" or "test".
            metrics: Results of the evaluator.
        """
        results = self.select_results(metrics)
        if kind == "val":
            self.bus.emit("after_val_epoch", metrics=results)
        else:
            self.bus.emit("after_test_epoch", metrics=results)
        if self.active_run.mode == "train":
            self.loop.validated_at = self.active_run.iters_done
        self.active_run.end_validation()

    def select_results(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the results that are single numbers. The others, such as lists of classes, are reported once."""
        results = super().select_results(metrics)
        others = {name for name, value in results.items() if not is_number(value)}
        if new := sorted(others - self._reported):
            self._reported.update(new)
            self.active_run.logger.warning(
                "MMEngine: the results %s are not single numbers, and hooks do not receive them.", ", ".join(new)
            )
        return {name: value for name, value in results.items() if name not in others}

    # -- checkpoints of the Runner -----------------------------------------------------------

    def keep_state(self, checkpoint: Mapping[str, Any]) -> None:
        """Keep the entry of a loaded checkpoint until the run begins.

        Args:
            checkpoint: Checkpoint of the Runner.
        """
        self._loaded = checkpoint.get(KEY, {}).get("run", {})

    def _keep_position(self, state: Mapping[str, Any]) -> None:
        """Keep the position of a checkpoint until the run has begun."""
        self._position = state

    def add_state(self, checkpoint: dict[str, Any]) -> None:
        """Add the entry to a checkpoint that is being saved.

        Args:
            checkpoint: Checkpoint of the Runner, on the main process.
        """
        if self._state:
            checkpoint[KEY] = self._state

    def _save_with_state(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return a `save_checkpoint` of the Runner that collects the state on every rank before it saves."""

        def save_checkpoint(out_dir: str, filename: str, *args: Any, **kwargs: Any) -> None:
            run_state = self.get_state()
            self._state = {"run": run_state} if run_state else {}
            try:
                original(out_dir, filename, *args, **kwargs)
            finally:
                self._state = {}
            for files in self._kept_files:
                files.remove_earlier(join_path(out_dir, filename))
            self.report_save(Path(out_dir) / filename)

        return save_checkpoint

    def _keep_files(self) -> None:
        """Keep earlier checkpoints until the next one is saved."""
        for hook in self.host.hooks:
            if isinstance(hook, CheckpointHook):
                self._kept_files.append(KeptFiles(hook.file_backend))
                self.replace(hook, "file_backend", lambda _: self._kept_files[-1])

    # -- requests ----------------------------------------------------------------------------

    def compute_outputs(self, batch: Any) -> object:
        """Compute the losses of a batch with the data preprocessor of the model, as in the training of the Runner."""
        model = unwrap_model(self.host.model)
        if not isinstance(model, BaseModel):
            return super().compute_outputs(batch)
        data = model.data_preprocessor(batch, True)
        return model(**data, mode="loss") if isinstance(data, dict) else model(*data, mode="loss")

    @property
    def can_validate(self) -> bool:
        """Whether the Runner has a loop for validations."""
        return self.host.val_loop is not None

    def stop(self, reasons: Sequence[str]) -> None:
        """End the training after this iteration."""
        self.loop.stop()

    def stop_epoch(self) -> None:
        """End the epoch after this iteration."""
        self.loop.stop_epoch()

    def save(self, reasons: Sequence[str]) -> None:
        """Save a checkpoint of the Runner, from which `resume=True` continues."""
        runner, run = self.host, self.active_run
        name = f"iter_{run.iters_done}.pth"
        runner.save_checkpoint(
            runner.work_dir,
            name,
            save_param_scheduler=runner.param_schedulers is not None,
            meta={"epoch": run.epochs_done if self.loop.by_epoch else 0, "iter": run.iters_done},
            by_epoch=False,
        )
        if is_main_process():
            Path(runner.work_dir, "last_checkpoint").write_text(join_path(runner.work_dir, name), "utf-8")

    def validate(self) -> None:
        """Validate now."""
        self.host.val_loop.run()
        self.host.model.train()


def is_number(value: Any) -> bool:
    """Return whether a result is a number, or a tensor or array with one element."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.numel() == 1 if isinstance(value, torch.Tensor) else value.size == 1
    return isinstance(value, Number)
