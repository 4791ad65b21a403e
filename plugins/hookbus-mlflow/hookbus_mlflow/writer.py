"""`Writer` of MLflow, and its requests with multiple records, of which a server may reject some."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import numpy
import requests
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from hookbus import Writer
from hookbus.errors import RejectedRecordsError
from hookbus.writers import RecordKey, flatten, to_finite_array, to_pil_image
from hookbus_mlflow.config import to_mlflow_name
from hookbus_mlflow.target import Target

METRICS_PER_BATCH, PARAMS_PER_BATCH = 1000, 100
"""Limits of the `log-batch` request in the MLflow REST API."""

NUM_BINS = 64
MAX_PARAM_LENGTH = 500
"""Older servers reject longer values; the artifact `config.json` contains the full configuration."""

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


T = TypeVar("T")

MAX_FAILURES = 20
"""Maximum number of single records that fail with a `ServerError` while no record is accepted."""


class RejectedError(ValueError):
    """A request with an invalid record, which fails at every attempt."""


class ServerError(OSError):
    """An error response of the server, either temporary or caused by an invalid record."""


def send_accepted(send: Callable[[Sequence[T]], object], records: Sequence[T]) -> list[tuple[T, Exception]]:
    """Send records in one request. If the request fails, send its halves, down to single records.

    Args:
        send: Sends records in one request; raises `RejectedError` or `ServerError` if the request fails, and other
            exceptions if no request can succeed.
        records: Records to send.

    Returns:
        The rejected records with their errors; all others were sent.

    Raises:
        ServerError: If the server accepts none of the records.
    """
    rejected: list[tuple[T, Exception]] = []
    accepted, pending = 0, [records] if records else []
    while pending:
        batch = pending.pop()
        try:
            send(batch)
            accepted += len(batch)
        except (RejectedError, ServerError) as error:
            if len(batch) > 1:
                pending += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
                continue
            rejected.append((batch[0], error))
            if not accepted and _count_failures(rejected) >= MAX_FAILURES:
                break
    if not accepted and _count_failures(rejected):
        # The server, and not a record, is likely the cause, so that a later attempt can succeed.
        raise next(error for _, error in rejected if isinstance(error, ServerError))
    return rejected


def _count_failures(rejected: Sequence[tuple[object, Exception]]) -> int:
    return sum(isinstance(error, ServerError) for _, error in rejected)


class MLflowWriter(Writer):
    """Writer that logs to one MLflow run: that of the stored ID, or a new run.

    Args:
        target: MLflow run to log to.
    """

    def __init__(self, target: Target) -> None:
        # Alembic, which creates and checks the tables, is not thread-safe, and each hook has its own thread.
        with _database_lock if target.is_database else nullcontext(), _translate_errors():
            self._client = target.create_client()
            self._run_id = target.find_or_create_run(self._client)
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
        with _translate_errors():
            # MLflow rejects a batch that changes the value of an existing param.
            existing = self._client.get_run(self._run_id).data.params
            values = {to_mlflow_name(key): str(value)[:MAX_PARAM_LENGTH] for key, value in flatten(config).items()}
            params = [Param(key, value) for key, value in values.items() if key not in existing]
            rejected = self._log_batches("params", params, PARAMS_PER_BATCH)
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
        rejected = self._log_batches("metrics", metrics, METRICS_PER_BATCH)
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

    def _log_batches(self, kind: str, records: Sequence[Any], size: int) -> list[tuple[Any, Exception]]:
        """Log metrics or params in batches, and return the rejected ones with their errors."""

        def send(batch: Sequence[Any]) -> None:
            request: dict[str, Any] = {kind: batch}
            with _translate_errors():
                self._client.log_batch(self._run_id, **request)

        batches = (records[begin : begin + size] for begin in range(0, len(records), size))
        return [rejected for batch in batches for rejected in send_accepted(send, batch)]


def _raise_if_rejected(rejected: Sequence[tuple[Any, Exception]], kind: str) -> None:
    """Raise a `RejectedRecordsError` with the names of the rejected records."""
    if rejected:
        record, error = rejected[0]
        names = [record.key for record, _ in rejected]
        raise RejectedRecordsError(f"{record.key!r} = {record.value!r}: {error}", names, kind) from error


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
