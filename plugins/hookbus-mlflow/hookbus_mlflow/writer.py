"""`Writer` of MLflow."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy
import requests
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.store.db.db_types import DATABASE_ENGINES

from hookbus import Writer
from hookbus.checkpoint import atomic_write
from hookbus.errors import RejectedRecordsError, format_path
from hookbus.writers import RecordKey, flatten, read_regular_file, to_finite_array, to_pil_image
from hookbus_mlflow.batches import RejectedError, ServerError, send_accepted
from hookbus_mlflow.database import ensure_database
from hookbus_mlflow.names import to_mlflow_name

METRICS_PER_BATCH, PARAMS_PER_BATCH = 1000, 100
"""Limits of the `log-batch` request in the MLflow REST API."""

NUM_BINS = 64
MAX_PARAM_LENGTH = 500
"""Older servers reject longer values; the artifact `config.json` contains the full configuration."""

MAX_ID_BYTES = 200
"""Maximum size of a file that contains an ID."""

OWNER_TAG = "hookbus.owner"
"""Tag that identifies the run of a directory."""

STATUS = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED"}
TRANSIENT_ERRORS = frozenset(
    {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "DEADLINE_EXCEEDED"}
)
"""Error codes of MLflow after which a retry can succeed."""
RETRY_STATUS_CODES = frozenset({408, 429})
"""Status codes below 500 after which a retry can succeed."""
INVALID_RECORD_ERRORS = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST"})
"""Error codes of MLflow for a request with an invalid record."""


_database_lock = threading.Lock()


@dataclass(frozen=True)
class Target:
    """MLflow run that a writer logs to.

    Attributes:
        directory: Absolute path of the directory that contains the ID of the run and, without `uri`, the database and
            the artifacts.
        uri: URI of a server or database; None for a database in `directory`.
        experiment: Name of the experiment.
        run_name: Name of a new run.
        tags: Tags of a new run.
        owner: ID of the run of hookbus, for the names of temporary files.
    """

    directory: Path
    uri: str | None
    experiment: str
    run_name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""

    @property
    def id_file(self) -> Path:
        """File that contains the ID of the run."""
        return self.directory / "run_id"

    @property
    def owner_file(self) -> Path:
        """File that contains the value of the tag `OWNER_TAG`, which finds a run whose ID is not stored yet."""
        return self.directory / "owner"

    @property
    def is_database(self) -> bool:
        """Whether the run is stored in a database without a server."""
        return not self.uri or self.uri.partition(":")[0].partition("+")[0] in DATABASE_ENGINES

    @property
    def artifact_uri(self) -> str | None:
        """URI of the artifacts of a new experiment; None for the default of the server."""
        return None if self.uri else (self.directory / "artifacts").as_uri()

    def create_client(self) -> MlflowClient:
        """Return a client of the server or database; the database in `directory` is created if it does not exist."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.uri:
            return MlflowClient(self.uri)
        return MlflowClient(ensure_database(self.directory / "mlflow.db", str(self.artifact_uri), self.owner))


class MLflowWriter(Writer):
    """Writer that logs to one MLflow run: that of the stored ID, or a new run.

    Args:
        target: MLflow run to log to.
    """

    def __init__(self, target: Target) -> None:
        # Alembic, which creates and checks the tables, is not thread-safe, and each hook has its own thread.
        with _database_lock if target.is_database else nullcontext(), _translate_errors():
            self._client = target.create_client()
            self._run_id = _read_run_id(target) or _find_or_create_run(self._client, target)
            self._client.update_run(self._run_id, status="RUNNING")
        self._metrics: list[Metric] = []
        self._status = ""

    def write_scalar(self, name: str, value: Any, step: int) -> None:
        """Log a metric with the next `flush`; MLflow stores infinities as the largest float."""
        self._metrics.append(Metric(name, float(value), int(self.time * 1000), step))

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        """Log a uint8 image of shape (H, W, C)."""
        with _translate_errors():
            self._client.log_image(
                self._run_id, to_pil_image(image), key=name, step=step, timestamp=int(self.time * 1000)
            )

    def write_text(self, name: str, text: str, step: int) -> None:
        """Log text as the artifact `texts/name/step.txt`."""
        with _translate_errors():
            self._client.log_text(self._run_id, text, f"texts/{name}/{step}.txt")

    def write_histogram(self, name: str, values: Any, step: int) -> None:
        """Log a histogram of the finite values as the artifact `histograms/name/step.json`.

        The artifact contains 64 `counts` and the 65 `edges` of the bins.

        Raises:
            ValueError: If no value is finite.
        """
        counts, edges = numpy.histogram(to_finite_array(name, values), NUM_BINS)
        with _translate_errors():
            histogram = {"counts": counts.tolist(), "edges": edges.tolist()}
            self._client.log_dict(self._run_id, histogram, f"histograms/{name}/{step}.json")

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Log each value as a param under its dotted key, and the configuration as the artifact `config.json`.

        Existing params keep their values; after a resume `config.json` contains the new configuration.

        Raises:
            RejectedRecordsError: If some params cannot be logged.
        """
        rejected: list[tuple[Param, Exception]] = []
        with _translate_errors():
            # MLflow rejects a batch that changes the value of an existing param.
            existing = self._client.get_run(self._run_id).data.params
            values = {to_mlflow_name(key): str(value)[:MAX_PARAM_LENGTH] for key, value in flatten(config).items()}
            params = [Param(key, value) for key, value in values.items() if key not in existing]
            for begin in range(0, len(params), PARAMS_PER_BATCH):
                rejected += send_accepted(self._log_params, params[begin : begin + PARAMS_PER_BATCH])
            self._client.log_dict(self._run_id, dict(config), "config.json")
        _raise_if_rejected(rejected, "params")

    def write_artifact(self, path: Path, name: str | None = None) -> None:
        """Log a file as an artifact, in the directory `name` if it is set."""
        with _translate_errors():
            self._client.log_artifact(self._run_id, str(path), to_mlflow_name(name) if name else None)

    def write_outcome(self, outcome: str) -> None:
        """Set the status of the run with the next `flush`: FINISHED, FAILED, or KILLED if the run can be resumed."""
        # After the metrics of the same flush, so that a run with a final status is complete.
        self._status = STATUS.get(outcome, "KILLED")

    def resume(self, since: int, step: int) -> frozenset[RecordKey]:
        """Return the logged metrics from step `since` on; MLflow cannot remove later ones."""
        with _translate_errors():
            # The history requires one query per name, so names whose last step is too low are skipped.
            newest = self._client.get_run(self._run_id).data.to_proto().metrics
            names = [metric.key for metric in newest if metric.step >= since]
            metrics = [metric for name in names for metric in self._client.get_metric_history(self._run_id, name)]
        return frozenset(("scalar", metric.key, metric.step) for metric in metrics if metric.step >= since)

    def flush(self) -> None:
        """Log the pending metrics in batches, and then the status.

        Raises:
            RejectedRecordsError: If some metrics cannot be logged.
        """
        # A retry after an error may log a metric again. MLflow ignores a metric with equal name, step, time and value.
        metrics, self._metrics = self._metrics, []
        status, self._status = self._status, ""
        rejected: list[tuple[Metric, Exception]] = []
        for begin in range(0, len(metrics), METRICS_PER_BATCH):
            rejected += send_accepted(self._log_metrics, metrics[begin : begin + METRICS_PER_BATCH])
        if status:
            with _translate_errors():
                self._client.set_terminated(self._run_id, status)
        _raise_if_rejected(rejected, "numbers")

    def abandon(self) -> None:
        """Discard the pending metrics and status."""
        self._metrics, self._status = [], ""

    def close(self) -> None:
        """Write the pending metrics and status. May be called twice."""
        self.flush()

    def _log_metrics(self, metrics: Sequence[Metric]) -> None:
        with _translate_errors():
            self._client.log_batch(self._run_id, metrics=metrics)

    def _log_params(self, params: Sequence[Param]) -> None:
        with _translate_errors():
            self._client.log_batch(self._run_id, params=params)


def _raise_if_rejected(rejected: Sequence[tuple[Metric | Param, Exception]], kind: str) -> None:
    """Raise a `RejectedRecordsError` with the names of the rejected records."""
    if rejected:
        record, error = rejected[0]
        names = [record.key for record, _ in rejected]
        raise RejectedRecordsError(f"{record.key!r} = {record.value!r}: {error}", names, kind) from error


def _read_run_id(target: Target) -> str | None:
    return _read_id(target.id_file) if os.path.lexists(target.id_file) else None


def _find_or_create_run(client: MlflowClient, target: Target) -> str:
    """Create a run, or find the run of a process that was killed before it stored the ID."""
    existing = client.get_experiment_by_name(target.experiment)
    experiment = (
        existing.experiment_id if existing else client.create_experiment(target.experiment, target.artifact_uri)
    )
    # The owner is stored before the run is created and the ID afterwards: a kill in between leaves a run that the next
    # process finds by the tag, instead of an orphaned run.
    tags = {**target.tags, OWNER_TAG: _read_or_create(target.owner_file, token_hex(16), target.owner)}
    runs = client.search_runs([experiment], f"tags.`{OWNER_TAG}` = '{tags[OWNER_TAG]}'")
    run = runs[0] if runs else client.create_run(experiment, tags=tags, run_name=target.run_name)
    return _read_or_create(target.id_file, run.info.run_id, target.owner)


def _read_or_create(file: Path, text: str, owner: str) -> str:
    """Return the content of a file, which is created atomically with `text` if it does not exist."""
    if not os.path.lexists(file):
        atomic_write(file, lambda opened: opened.write(text.encode()), run=owner)
    return _read_id(file)


def _read_id(file: Path) -> str:
    """Return the ID in a file.

    Raises:
        ValueError: If the file does not contain an ID.
    """
    try:
        text = read_regular_file(file, MAX_ID_BYTES).decode().strip()
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{format_path(file)}: the ID of the MLflow run cannot be read: {error}") from error
    if not re.fullmatch(r"[\w-]+", text):
        raise ValueError(f"{format_path(file)}: expected the ID of an MLflow run, got {text[:40]!r}")
    return text


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Convert errors of MLflow: `OSError` if a retry can succeed, else `ValueError`."""
    try:
        yield
    except MlflowException as error:
        raise _get_error_type(error)(f"MLflow: {error}") from error
    except requests.HTTPError as error:  # of an artifact store; an OSError
        response = error.response
        if response is None or response.status_code >= 500 or response.status_code in RETRY_STATUS_CODES:
            raise
        raise ValueError(f"MLflow: {error}") from error


def _get_error_type(error: MlflowException) -> type[Exception]:
    # The SQLAlchemy store reports an invalid value of one record as INTERNAL_ERROR as well (mlflow 3.17).
    is_invalid_value = isinstance(error.__cause__, (TypeError, ValueError, ArithmeticError))
    if is_invalid_value or error.error_code in INVALID_RECORD_ERRORS:
        return RejectedError
    if error.error_code not in TRANSIENT_ERRORS:
        return ValueError
    # A response of the server has no other exception as its context, or a `RetryError` after the last retry.
    is_response = error.__context__ is None or isinstance(error.__context__, requests.exceptions.RetryError)
    return ServerError if is_response else OSError
