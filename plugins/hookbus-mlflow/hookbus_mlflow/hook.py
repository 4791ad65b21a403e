"""The MLflow hook."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hookbus import Run, Writer, WriterHook
from hookbus_mlflow.config import MLflowConfig
from hookbus_mlflow.names import stored

__all__ = ["MLflowHook"]


class MLflowHook(WriterHook):
    """Records into the run of MLflow that belongs to the work directory: a resumed training goes on with it."""

    Config = MLflowConfig
    library = "mlflow"
    install = "mlflow-skinny sqlalchemy alembic"
    patience = 120.0  # a database takes its time for many names
    config: MLflowConfig

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        """See that there is a work directory: it keeps the id of the run.

        Raises:
            HookError: there is none.
        """
        from hookbus_mlflow.writer import MLflowWriter, Target

        directory = self.directory(run, None).absolute()
        assert run.work_dir is not None
        target = Target(
            directory=directory,
            uri=self.config.tracking_uri,
            experiment=self.config.experiment,
            run_name=self.config.run_name or run.work_dir.path.absolute().name,
            tags=self.config.tags,
        )
        return partial(MLflowWriter, target)

    def stored_name(self, name: str) -> str:
        """Names that MLflow takes."""
        return stored(name)

    def takes_checkpoints(self) -> bool:
        """Checkpoint files become artifacts on request."""
        return self.config.log_model
