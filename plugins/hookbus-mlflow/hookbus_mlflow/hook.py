"""The MLflow hook."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from hookbus import Needs, Run, Writer, WriterHook
from hookbus.writers import redact
from hookbus_mlflow.config import MLflowConfig, to_mlflow_name


class MLflowHook(WriterHook):
    """Log to the MLflow run of the work directory; a resumed training continues the same MLflow run."""

    Config = MLflowConfig
    requires_work_dir = True
    library = "mlflow"
    install = "mlflow-skinny sqlalchemy alembic"
    patience = 120.0  # a database is slow with many metric names
    config: MLflowConfig

    @property
    def needs(self) -> Needs:
        """Checkpoints, if they are uploaded."""
        return Needs(points=("after_save_checkpoint",) if self.config.log_model else ())

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        """Return a factory of writers for the MLflow run of this work directory.

        Raises:
            HookError: If the run has no work directory, which stores the ID of the MLflow run.
        """
        # Imported here, so that the hook can be constructed and its config validated without loading mlflow.
        from hookbus_mlflow.target import Target
        from hookbus_mlflow.writer import MLflowWriter

        # MLflow retries a request for up to four minutes, longer than `patience`, in which this hook could not retry.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        directory = self.directory(run, None, "files of MLflow").absolute()
        assert run.work_dir is not None
        target = Target(
            directory=directory,
            uri=self.config.tracking_uri,
            experiment=redact(self.config.experiment),
            run_name=redact(self.config.run_name or run.work_dir.path.absolute().name),
            tags=redact(self.config.tags),
            owner=run.id,
        )
        return partial(MLflowWriter, target)

    def restarts(self, run: Run) -> bool:
        """Return False: a training that starts again continues its MLflow run."""
        return False

    def backend_name(self, name: str) -> str:
        """Return a valid MLflow name."""
        return to_mlflow_name(name)

    def uploads_checkpoints(self) -> bool:
        """Return whether checkpoint files are logged as artifacts."""
        return self.config.log_model
