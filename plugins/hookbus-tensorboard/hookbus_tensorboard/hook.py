"""The TensorBoard hook and the data that it logs in addition to a `WriterHook`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import nn

from hookbus import Needs, Run, Unit, Writer, WriterHook, every, hookimpl
from hookbus.checkpoint import schema
from hookbus.distributed import named_parameters, sharding_of
from hookbus.errors import format_error, format_path
from hookbus.evaluation import eval_mode
from hookbus.writers import PlannedFile, claim_directory, resolve_output_path
from hookbus_tensorboard.config import TensorBoardConfig
from hookbus_tensorboard.inputs import (
    find_images,
    format_config,
    format_model,
    get_model_arguments,
    subsample,
    trace_graph,
)

DESCRIPTION = "TensorBoard event files"

_check_digest = schema.record({}, {"config": schema.string()})


class TensorBoardHook(WriterHook):
    """Write TensorBoard event files; a resumed run continues them.

    In addition to the records of every `WriterHook`, the configuration and a summary of the model are logged as text,
    and the final results as hparams. The model graph, the input images and histograms of weights and gradients are
    optional.
    """

    Config = TensorBoardConfig
    requires_work_dir = True
    library = "torch.utils.tensorboard"
    install = "tensorboard"
    config: TensorBoardConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._run_config: Mapping[str, Any] = {}
        self._event_directory = Path()
        self._config_digest = ""
        self._trace_pending = self.config.log_graph

    @property
    def needs(self) -> Needs:
        """What the optional records read."""
        config = self.config
        reads_batch, has_histograms = config.log_graph or config.log_images, config.log_weights or config.log_gradients
        points = {"before_train_iter": reads_batch, "before_optimizer_step": has_histograms}
        return Needs(
            points=[point for point, is_read in points.items() if is_read],
            gradients=["before_optimizer_step"] if config.log_gradients else (),
            batch=reads_batch,
        )

    @property
    def output_paths(self) -> dict[str, Path | None]:
        """Directory of the event files."""
        return {"log_dir": self.config.log_dir}

    def planned_files(self, run: Run) -> list[PlannedFile]:
        """Return the pattern of the event files."""
        directory = self.config.log_dir or f"logs/{self.name}"
        return [PlannedFile(f"{directory}/events.out.tfevents.{{}}", appended=True)]

    def check(self, run: Run) -> None:
        """Check that no other hook writes to the same directory.

        Raises:
            ConfigError: If another hook has the same `log_dir`, or a value of the optimizer cannot be logged.
        """
        super().check(run)
        self.check_unique(
            run,
            f"writes to {self.config.log_dir}",
            "Set another `log_dir`.",
            setting="log_dir",
            get_value=lambda hook: hook.config.log_dir and hook.config.log_dir.absolute(),
        )

    def get_milestones(self, run: Run) -> dict[str, tuple[int, Unit]]:
        """Return the first iteration whose input images are logged."""
        return {"image_interval": (self.config.image_interval, "iter")} if self.config.log_images else {}

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        """Return a factory of writers for the directory of this run.

        Raises:
            ConfigError: If `log_dir` is a relative path in a validation or test without a work directory.
            HookError: If neither `log_dir` nor a work directory is set in one.
        """
        from hookbus_tensorboard.writer import TensorBoardWriter

        log_dir = self.config.log_dir
        log_dir = log_dir and resolve_output_path(run, self.name, "log_dir", log_dir)
        self._event_directory = self.directory(run, log_dir, DESCRIPTION)
        return lambda: TensorBoardWriter(self._event_directory)

    def prepare_directory(self, run: Run) -> None:
        """Determine a directory without the events of other runs: `log_dir`, or a subdirectory of it.

        Raises:
            OSError: If the directory cannot be created, or earlier events cannot be moved.
        """
        super().prepare_directory(run)
        if self.config.log_dir is None:
            return
        from hookbus_tensorboard.writer import contains_events, move_events

        log_dir = self._event_directory
        self._event_directory = claim_directory(run, log_dir, contains_events, DESCRIPTION)
        if self._event_directory != log_dir:
            run.logger.warning(
                "%s: log_dir: %s contains the events of another run, so the events are written to %s. Set another "
                "`log_dir` for each run.",
                self.name,
                format_path(log_dir),
                format_path(self._event_directory),
            )
        if self.restarts(run) and (moved := move_events(self._event_directory)) is not None:
            run.logger.info("%s: the events before the restart are kept in %s.", self.name, format_path(moved))

    # -- text and hparams ------------------------------------------------------------------------

    def before_run(self, run: Run, mode: str) -> None:
        """Create the queue. A run that starts at iteration 0 logs its configuration."""
        super().before_run(run, mode)
        if not run.iters_done:
            self._config_digest = ""

    def before_train(self, run: Run) -> None:
        """Start writing; log the configuration and a summary of the model as text."""
        super().before_train(run)
        self._log_changed_config(run)
        if run.model is not None:
            self.log_text(run, "model", format_model(run.model), run.steps_done)

    def _log_changed_config(self, run: Run) -> None:
        """Log the configuration as text if it differs from the logged one, except in how the run resumes."""
        config, step = self._run_config, run.steps_done
        digest = sha256(format_config({k: v for k, v in config.items() if k != "resume"}).encode()).hexdigest()
        if config and digest != self._config_digest:
            self._config_digest = digest
            self.enqueue("configurations", lambda writer: writer.write_config(config, step))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the writer hook, and the digest of the logged configuration."""
        return {**super().state_dict(), "config": self._config_digest}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise if a state cannot be restored."""
        super().check_state(state)
        _check_digest(state, "state")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        super().load_state_dict(state)
        self._config_digest = state.get("config", "")  # absent in earlier checkpoints

    def enqueue_config(self, config: Mapping[str, Any]) -> None:
        """Store the configuration, which is logged as text when training starts and as hparams when the run ends."""
        self._run_config = config
        # At the start of a run it is not known yet whether the run resumes.
        if self._started:
            self._log_changed_config(self.run)

    def after_run(self, run: Run) -> None:
        """Log the hparams with the final results of a training."""
        if run.mode == "train" and self._run_config:
            # Copied here, because the writer's thread runs the lambda after the run may have changed its metrics.
            config, results, step = self._run_config, dict(run.metrics.results), run.steps_done
            self.enqueue("hparams", lambda writer: writer.write_hparams(config, results, step))
        super().after_run(run)

    # -- optional records ------------------------------------------------------------------------

    @hookimpl(frequency=False)
    def before_train_iter(self, run: Run, batch: Any, model: nn.Module) -> None:
        """Trace the model with the first batch, and log the input images of a due iteration."""
        if self._trace_pending:
            self._trace_pending = False  # one attempt per hook: a failed trace would fail again with every batch
            self._trace(model, batch)
        if self.config.log_images and self.every_n_iters(run, self.config.image_interval):
            self._log_inputs(run, batch)

    @hookimpl(
        when=lambda config: every(config.histogram_interval if config.log_weights or config.log_gradients else None)
    )
    def before_optimizer_step(self, run: Run) -> None:
        """Log histograms of the weights before the optimizer step, and of the gradients of this step."""
        if self._check_sharded(run.model, "log_weights and log_gradients"):
            return
        for name, weight in named_parameters(run.model) if run.model is not None else ():
            if self.config.log_weights:
                self.log_histograms(run, f"weights/{name}", subsample(weight), run.steps_done)
            if self.config.log_gradients and weight.grad is not None:
                self.log_histograms(run, f"gradients/{name}", subsample(weight.grad), run.steps_done)

    def _log_inputs(self, run: Run, batch: Any) -> None:
        images = find_images(batch, self.config.max_images)
        if not images:
            self.warn_once(
                "log_images: the batch contains no images of shape (N, C, H, W) or (N, H, W, C). Set it to false"
            )
        for i, image in enumerate(images):
            self.log_images(run, f"input/{i}", image, run.steps_done, None)

    def _check_sharded(self, model: nn.Module | None, setting: str) -> bool:
        """Return whether the parameters are sharded across ranks, and warn that `setting` has no effect then."""
        # This hook runs on rank 0 only. Full tensors and a forward pass require collectives, which would deadlock.
        if sharding_of(model) is None:
            return False
        self.warn_once(f"{setting}: not supported for parameters that are sharded across ranks. Set it to false")
        return True

    def _trace(self, model: nn.Module, batch: Any) -> None:
        if self._check_sharded(model, "log_graph"):
            return
        try:
            with eval_mode(model):
                graph = trace_graph(model, *get_model_arguments(batch))
        except Exception as error:
            self.warn_once(
                f"log_graph: the model cannot be traced with the first batch: {format_error(error)}. Set it to false"
            )
        else:
            self.enqueue("graphs", lambda writer: writer.write_graph(graph))
