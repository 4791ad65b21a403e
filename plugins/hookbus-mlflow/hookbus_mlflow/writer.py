"""The `Writer` of MLflow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from hookbus import Writer
from hookbus.pictures import pil_image
from hookbus.records.copies import finite_values
from hookbus.records.secrets import flattened
from hookbus.writers import Place
from hookbus_mlflow.database import see_database
from hookbus_mlflow.names import stored

__all__ = ["MLflowWriter", "Target"]

METRICS_IN_BATCH, PARAMS_IN_BATCH = 1000, 100
BINS = 64
LONGEST_PARAM = 500
"""Older servers refuse longer values; the whole configuration is an artifact besides."""

OWNER = "hookbus.owner"
"""The tag by which the run of a directory is found."""

STATUS = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED"}
PASSING = frozenset({"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "DEADLINE_EXCEEDED"})
"""Errors of MLflow after which another try makes sense."""


@dataclass(frozen=True)
class Target:
    """Where a run is kept.

    Attributes:
        directory: absolute; holds the id of the run, and without `uri` the database and the artifacts as well.
        uri: of a server or database; None for one of the run's own.
        experiment: its name.
        run_name: what a new run is called.
        tags: of a new run.
    """

    directory: Path
    uri: str | None
    experiment: str
    run_name: str
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def id_file(self) -> Path:
        """Holds the id of the run."""
        return self.directory / "run_id"

    @property
    def owner_file(self) -> Path:
        """Holds what a run is found by whose id is not kept yet."""
        return self.directory / "owner"

    @property
    def artifacts(self) -> str | None:
        """Where artifacts of a new experiment go; None leaves it to the server."""
        return None if self.uri else (self.directory / "artifacts").as_uri()

    def client(self) -> MlflowClient:
        """A client of the server or database, which is made if it is our own."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.uri:
            return MlflowClient(self.uri)
        return MlflowClient(see_database(self.directory / "mlflow.db", str(self.artifacts)))


class MLflowWriter(Writer):
    """Writes into one run of MLflow: the one whose id is in the file, or a new one.

    Args:
        target: where the run is kept.
    """

    def __init__(self, target: Target) -> None:
        with _translated():
            self._client = target.client()
            self._run_id = _known_run(target) or _new_run(self._client, target)
            self._client.update_run(self._run_id, status="RUNNING")
        self._metrics: list[Metric] = []
        self._status = ""

    def write_scalar(self, name: str, value: Any, step: int) -> None:
        """One metric; MLflow keeps infinities as the largest numbers there are."""
        self._metrics.append(Metric(name, float(value), int(self.time * 1000), step))

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        """One picture, uint8 (H, W, C)."""
        with _translated():
            self._client.log_image(self._run_id, pil_image(image), key=name, step=step, timestamp=int(self.time * 1000))

    def write_text(self, name: str, text: str, step: int) -> None:
        """A text, as the artifact `texts/name/step.txt`."""
        with _translated():
            self._client.log_text(self._run_id, text, f"texts/{name}/{step}.txt")

    def write_histogram(self, name: str, values: Any, step: int) -> None:
        """The distribution of the finite values, as the artifact `histograms/name/step.json`.

        It holds `counts`, 64 of them, and the 65 `edges` between which they were counted.

        Raises:
            ValueError: there are none.
        """
        counts, edges = numpy.histogram(finite_values(name, values), BINS)
        with _translated():
            held = {"counts": counts.tolist(), "edges": edges.tolist()}
            self._client.log_dict(self._run_id, held, f"histograms/{name}/{step}.json")

    def write_config(self, config: Mapping[str, Any]) -> None:
        """One param for each value, under the parts of its key joined by dots; those that are there stay as they are.

        The whole of it is the artifact `config.json`, the newest after a resume.
        """
        with _translated():
            there = self._client.get_run(self._run_id).data.params
            named = {stored(key): str(value)[:LONGEST_PARAM] for key, value in flattened(config).items()}
            params = [Param(key, value) for key, value in named.items() if key not in there]
            for begin in range(0, len(params), PARAMS_IN_BATCH):
                self._client.log_batch(self._run_id, params=params[begin : begin + PARAMS_IN_BATCH])
            self._client.log_dict(self._run_id, dict(config), "config.json")

    def write_artifact(self, path: Path, name: str | None = None) -> None:
        """A file, in the directory `name` of the artifacts."""
        with _translated():
            self._client.log_artifact(self._run_id, str(path), stored(name) if name else None)

    def write_outcome(self, outcome: str) -> None:
        """The status of the run, behind its last metrics: FINISHED, FAILED, or KILLED where it may go on."""
        self._status = STATUS.get(outcome, "KILLED")

    def resume(self, since: int, step: int) -> frozenset[Place]:
        """What the run holds stays: MLflow takes nothing back."""
        with _translated():
            # One query for each name, so only for those whose newest step says that there is something to find.
            newest = self._client.get_run(self._run_id).data.to_proto().metrics
            names = [each.key for each in newest if each.step >= since]
            found = [each for name in names for each in self._client.get_metric_history(self._run_id, name)]
        return frozenset(("scalar", each.key, each.step) for each in found if each.step >= since)

    def flush(self) -> None:
        """Metrics go to MLflow together; one that comes again with the same time is the same one."""
        metrics, self._metrics = self._metrics, []
        status, self._status = self._status, ""
        with _translated():
            for begin in range(0, len(metrics), METRICS_IN_BATCH):
                self._client.log_batch(self._run_id, metrics=metrics[begin : begin + METRICS_IN_BATCH])
            if status:
                self._client.set_terminated(self._run_id, status)

    def abandon(self) -> None:
        """Drop what has not been flushed."""
        self._metrics, self._status = [], ""

    def close(self) -> None:
        """Write what waits. May be called twice."""
        self.flush()


def _known_run(target: Target) -> str | None:
    return target.id_file.read_text().strip() if target.id_file.is_file() else None


def _new_run(client: MlflowClient, target: Target) -> str:
    """Begin a run, or find the one that a process began which was killed before it could keep the id."""
    found = client.get_experiment_by_name(target.experiment)
    experiment = found.experiment_id if found else client.create_experiment(target.experiment, target.artifacts)
    tags = {**target.tags, OWNER: _kept(target.owner_file, token_hex(16))}
    begun = client.search_runs([experiment], f"tags.`{OWNER}` = '{tags[OWNER]}'")
    run = begun[0] if begun else client.create_run(experiment, tags=tags, run_name=target.run_name)
    return _kept(target.id_file, run.info.run_id)


def _kept(file: Path, text: str) -> str:
    """What a file holds; it is made with this text where it is not there."""
    if not file.is_file():
        temporary = file.with_name(f".{file.name}")
        temporary.write_text(text)
        os.replace(temporary, file)
    return file.read_text().strip()


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of MLflow as a `Writer` raises them."""
    try:
        yield
    except MlflowException as error:
        of_record = isinstance(error.__cause__, (TypeError, ValueError, ArithmeticError))  # the database's, of one
        kind = OSError if error.error_code in PASSING and not of_record else ValueError
        raise kind(f"MLflow: {error}") from error
