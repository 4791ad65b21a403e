"""The W&B hook."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookbus import Needs, Run, Writer, WriterHook
from hookbus.writers import redact
from hookbus_wandb.config import WandbConfig, to_wandb_name


class WandbHook(WriterHook):
    """Log to the W&B run of the work directory; a resumed training continues the same W&B run."""

    Config = WandbConfig
    requires_work_dir = True
    library = "wandb"
    install = "wandb"
    patience = 120.0  # at the end W&B uploads all pending files, which can be large
    config: WandbConfig

    def __init__(self, values: Any = None, /, **settings: Any) -> None:
        # Positional-only, because `config` is the name of a setting here and not that of the mapping of settings.
        super().__init__({**dict(values or {}), **settings} if settings else values)

    @property
    def needs(self) -> Needs:
        """Checkpoints, if they are uploaded."""
        return Needs(points=("after_save_checkpoint",) if self.config.log_model else ())

    def check(self, run: Run) -> None:
        """Check that no other hook logs to the same W&B run.

        Raises:
            ConfigError: If another hook has the same `id`, or a value of the optimizer cannot be logged.
        """
        super().check(run)
        effect = f"logs to the W&B run {self.config.id}"
        self.check_unique(run, effect, "Set another `id`.", setting="id", get_value=lambda hook: hook.config.id)

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        """Return a factory of writers for the W&B run of this work directory.

        Raises:
            HookError: If the run has no work directory, which stores the ID of the W&B run, or an online run has no API
                key.
        """
        # Imported here, so that the hook can be constructed and its config validated without loading wandb.
        from hookbus_wandb.writer import Target, WandbWriter, get_run_id, prepare

        prepare(self.config.mode)
        directory = self._wandb_directory = self.directory(run, None, "files of Weights & Biases").absolute()
        assert run.work_dir is not None
        target = Target(
            directory=directory,
            run_id=self.config.id or get_run_id(directory, new=self.config.resume == "never"),
            settings=self.config,
            name=redact(self.config.name or run.work_dir.path.absolute().name),
            config=redact(self.config.config or {}),
            owner=run.id,
            hides_command=run.redact(sys.argv) != sys.argv,
        )
        self._has_started = False

        def open_writer() -> Writer:
            writer = WandbWriter(target)
            self._has_started = True
            return writer

        return open_writer

    def restarts(self, run: Run) -> bool:
        """Return False: a training that starts again continues its W&B run."""
        return False

    def backend_name(self, name: str) -> str:
        """Return a valid W&B name."""
        return to_wandb_name(name)

    def undelivered_note(self) -> str:
        """Return how to upload the records that W&B has stored in its files but not uploaded."""
        if not self._has_started:
            return "the W&B run could not be started"
        return f"run `wandb sync {self._wandb_directory / 'wandb' / '*run-*'}` to upload the missing records"

    def before_train(self, run: Run) -> None:
        """Start writing, and upload the code if `log_code` is set."""
        super().before_train(run)
        if self.config.log_code:
            self.enqueue("files", lambda writer: writer.write_code(Path.cwd()))

    def after_save_checkpoint(self, path: Path, is_best: bool) -> None:  # type: ignore[override]
        """Upload the checkpoint file as a version of the model if `log_model` is set."""
        if self.config.log_model:
            self.enqueue("files", lambda writer: writer.write_model(path, is_best))
