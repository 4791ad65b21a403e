"""The W&B hook."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hookbus import Run, Writer, WriterHook
from hookbus.hook import validated
from hookbus.records.secrets import without_secrets
from hookbus_wandb.config import WandbConfig

__all__ = ["WandbHook"]


class WandbHook(WriterHook):
    """Records into the run of W&B that belongs to the work directory: a resumed training goes on with it."""

    Config = WandbConfig
    library = "wandb"
    install = "wandb"
    patience = 120.0  # what waits has to be sent
    config: WandbConfig

    def __init__(self, given: Any = None, /, **settings: Any) -> None:
        super().__init__()
        self._config = validated(self.Config, given, settings, type(self).__name__)  # `config` is one of the settings

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        """See that there is a work directory, which keeps the id of the run, and that W&B knows who writes.

        Raises:
            HookError: one of them is missing.
        """
        from hookbus_wandb.writer import Target, WandbWriter, prepare, run_id_in

        prepare(self.config.mode)
        directory = self._directory = self.directory(run, None).absolute()
        assert run.work_dir is not None
        target = Target(
            directory=directory,
            run_id=self.config.id or run_id_in(directory, new=self.config.resume == "never"),
            resume=self.config.resume,
            mode=self.config.mode,
            project=self.config.project,
            name=self.config.name or run.work_dir.path.absolute().name,
            config=without_secrets(self.config.config or {}),
        )
        return partial(WandbWriter, target)

    def stored_name(self, name: str) -> str:
        """Names that W&B takes."""
        from hookbus_wandb.names import stored

        return stored(name)

    def rest(self) -> str:
        """Everything is in the files of W&B, and can be sent later."""
        return f"what W&B has not got is sent by `wandb sync {self._directory / 'wandb' / '*run-*'}`"

    def before_train(self, run: Run) -> None:
        """Hand the code to W&B, on request."""
        super().before_train(run)
        if self.config.log_code:
            self.put("files", lambda writer: writer.write_code(Path.cwd()))

    def after_save_checkpoint(self, path: Path, is_best: bool) -> None:  # type: ignore[override]
        """A checkpoint file becomes a version of the run's model, on request."""
        if self.config.log_model:
            self.put("files", lambda writer: writer.write_model(path, is_best))
