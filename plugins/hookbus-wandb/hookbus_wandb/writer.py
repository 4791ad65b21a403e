"""The `Writer` of W&B."""

from __future__ import annotations

import html
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import wandb
from wandb.errors import CommError, WandbCoreNotAvailableError
from wandb.sdk.lib.wbauth import authenticate_session
from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError
from wandb.sdk.mailbox.mailbox_handle import ServerResponseError

from hookbus import Writer
from hookbus.errors import HookError
from hookbus.pictures import pil_image
from hookbus.records.copies import finite_values
from hookbus.records.secrets import is_secret, without_secrets
from hookbus.writers import Place
from hookbus_wandb.files import Log, held, numbers_from, run_files
from hookbus_wandb.names import STEP, artifact_name

__all__ = ["Target", "WandbWriter", "prepare", "run_id_in"]

ID_FILE = "run_id"
FLUSH_SECONDS = 0.2
"""So often the process of W&B writes what it has into its file."""
PATIENCE = 10.0
"""Seconds that it may take until a row is there."""
EXIT_CODES = {"finished": 0, "stopped": 0, "interrupted": 255}
"""What W&B calls finished, and what killed by Ctrl-C; anything else has failed."""


@contextmanager
def _ends_kept() -> Iterator[None]:
    """Leave `sys.exit` and `sys.excepthook` as they are: W&B puts its own there for good, to learn of exit codes."""
    kept = sys.exit, sys.excepthook
    try:
        yield
    finally:
        sys.exit, sys.excepthook = kept


@dataclass(frozen=True)
class Target:
    """Which run of W&B is written to.

    Attributes:
        directory: absolute; holds the id of the run, and the files of W&B.
        run_id: the id.
        resume: "allow", "must" or "never", as `wandb.init` has it.
        mode: "online", "offline" or "disabled"; None leaves it to W&B's environment.
        project: None likewise.
        name: what the run is called.
        config: settings that win over the configuration of the run; without secrets.
    """

    directory: Path
    run_id: str
    resume: str = "allow"
    mode: str | None = None
    project: str | None = None
    name: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    @_ends_kept()
    def begin(self) -> Any:
        """Begin the run, or go on with it.

        Returns:
            The `wandb.Run`.

        Raises:
            HookError: an offline run must be there, and is not. Of one that is online W&B says so.
        """
        is_of_the_user = wandb.env.SERVICE in os.environ
        self.directory.mkdir(parents=True, exist_ok=True)
        _keep(self.directory / ID_FILE, self.run_id)  # before W&B knows of it: a kill leaves no run without an owner
        is_ours = bool(run_files(self.directory, self.run_id))
        if self.resume == "must" and not is_ours and (self.mode or wandb.setup().settings.mode) == "offline":
            raise HookError(
                f"resume: must, and {self.directory} holds no run {self.run_id} of W&B to go on with. "
                "Give the work_dir of that run, or resume: allow. Nothing is recorded."
            )
        run = wandb.init(
            id=self.run_id,
            resume="allow" if self.resume == "never" and is_ours else self.resume,  # type: ignore[arg-type]
            mode=self.mode,  # type: ignore[arg-type]
            project=self.project,
            name=self.name,
            config=dict(self.config),
            dir=self.directory,
            reinit="create_new",  # a run that the user has begun stays as it is
            settings=wandb.Settings(
                console="off",
                x_transaction_log_flush_interval=FLUSH_SECONDS,
                x_disable_meta=any(map(_holds_secret, sys.argv)),  # the command line is a part of it
            ),
        )
        # A training that is started from here has a process of W&B of its own: killed, it leaves no run in use in ours.
        if not is_of_the_user:
            os.environ.pop(wandb.env.SERVICE, None)
        return run


class WandbWriter(Writer):
    """Writes into one run of W&B.

    W&B drops a row whose number is not higher than those before, so rows are only counted, over all processes of the
    run, and the step of a record is a number of the row: every curve is drawn over that one.

    Args:
        target: the run.
    """

    def __init__(self, target: Target) -> None:
        self._target, self._exit_code = target, 1
        earlier = run_files(target.directory, target.run_id)
        self._there, rows = held(earlier)
        with _translated():
            self._run: Any = target.begin()
            sent = self._run.starting_step
            self._row = self._safe = max(rows, sent)
            self._run.define_metric(STEP, hidden=True)
            self._run.define_metric("*", step_metric=STEP)
        self._file = None if self._run.disabled else Log(Path(self._run.settings.sync_file))
        if sent < rows and not self._run.offline and not self._run.disabled:
            self._send_again(earlier, sent)

    def write_scalar(self, name: str, value: Any, step: int) -> None:
        """One number; NaN and infinities are kept."""
        self._log("scalar", {name: value}, step)

    def write_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Numbers of one step, in one row."""
        self._log("scalar", values, step)

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        """One picture, uint8 (H, W, C), as a PNG file."""
        self._log("image", {name: wandb.Image(pil_image(image), caption=caption, file_type="png")}, step)

    def write_histogram(self, name: str, values: Any, step: int) -> None:
        """The distribution of the finite values, in 64 bins.

        Raises:
            ValueError: there are none.
        """
        self._log("histogram", {name: wandb.Histogram(finite_values(name, values))}, step)

    def write_text(self, name: str, text: str, step: int) -> None:
        """A text, as it is."""
        self._log("text", {name: wandb.Html(f"<pre>{html.escape(text)}</pre>")}, step)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """The configuration; after a resume the newest counts."""
        with _translated():
            self._run.config.update({**config, **self._target.config}, allow_val_change=True)

    def write_artifact(self, path: Path, name: str | None = None) -> None:
        """A file, as an artifact of its own."""
        self._keep_file(path, f"run-{self._target.run_id}-{name or path.name}", "file", [])

    def write_model(self, path: Path, is_best: bool) -> None:
        """A checkpoint file, as a version of the artifact `model-` and the id of the run.

        Args:
            path: the file; its name is an alias of the version.
            is_best: whether the version is `best` from now on.

        Raises:
            ValueError: the file is gone.
        """
        if not path.is_file():  # an OSError would mean that another try makes sense
            raise ValueError(f"{path} is gone, or no file")
        self._keep_file(path, f"model-{self._target.run_id}", "model", ["latest", path.stem, *["best"] * is_best])

    def write_code(self, root: Path) -> None:
        """The Python files below a directory; those of installed packages, and hidden ones, are left out."""
        with _translated():
            self._run.log_code(str(root), exclude_fn=_is_foreign)

    def write_outcome(self, outcome: str) -> None:
        """How the run ended: W&B tells finished, failed, killed and preempted ones apart."""
        self._exit_code = EXIT_CODES.get(outcome, 1)
        if outcome == "preempted":
            with _translated():
                self._run.mark_preempting()

    def resume(self, since: int, step: int) -> frozenset[Place]:
        """What the run holds stays: W&B takes nothing back."""
        return frozenset(place for place in self._there if place[2] >= since)

    def flush(self) -> None:
        """Wait until every row is in the file of W&B: its process says nothing when the disk is full.

        Raises:
            OSError: one does not get there.
        """
        with _translated():
            _ = self._run.step  # it answers, so it is alive
        if self._safe < self._row:
            self._see(lambda record: record.HasField("history") and record.history.step.num + 1 >= self._row)
            self._safe = self._row
        self._there = set()

    def close(self) -> None:
        """Let W&B finish the run, and wait until that is in its file. May be called twice.

        Raises:
            OSError: it does not get there.
        """
        run, self._run = self._run, None
        if run is not None:
            with _translated():
                run.finish(exit_code=self._exit_code)
            self._see(lambda record: record.HasField("exit"))
            if wandb.setup().most_recent_active_run is None:  # or else the user has a run that goes on
                wandb.teardown()

    def _log(self, kind: str, values: Mapping[str, Any], step: int) -> None:
        """One row; what a writer before this one got into the file is left out."""
        new = {name: value for name, value in values.items() if (kind, name, step) not in self._there}
        if new:
            with _translated():
                self._run.log({**new, STEP: step}, step=self._row, commit=True)
            self._row += 1

    def _send_again(self, files: list[Path], first: int) -> None:
        """Log the numbers that the service has not got: a process was killed before they were sent."""
        self._there, _ = held(files, before=first)
        for numbers, step in numbers_from(files, first):
            self._log("scalar", numbers, step)
            self._there.update(("scalar", name, step) for name in numbers)

    def _see(self, is_it: Callable[[Any], bool]) -> None:
        """Wait until a record is in the file of W&B."""
        give_up = time.monotonic() + PATIENCE
        while self._file is not None and not any(map(is_it, self._file.records())):
            if time.monotonic() > give_up:
                raise OSError(f"W&B: what is recorded does not get into {self._file.path}; is the disk full?")
            time.sleep(FLUSH_SECONDS / 10)

    def _keep_file(self, path: Path, name: str, kind: str, aliases: list[str]) -> None:
        artifact = wandb.Artifact(artifact_name(name), type=kind)
        artifact.add_file(str(path), name=path.name, skip_cache=True)
        with _translated():
            self._run.log_artifact(artifact, aliases=aliases)


def run_id_in(directory: Path, *, new: bool) -> str:
    """The id of the run that a directory belongs to; a new one where there is none, or where a new one is asked for."""
    file = directory / ID_FILE
    known = file.read_text().strip() if file.is_file() and not new else ""
    return known or token_hex(4)


@_ends_kept()
def prepare(mode: str | None) -> None:
    """See that W&B will not ask for a key in the middle of a training, and that a run that is offline stays so.

    Args:
        mode: as for `Target`.

    Raises:
        HookError: the run goes online, and there is no key.
    """
    os.environ.setdefault(wandb.env.ERROR_REPORTING, "false")  # W&B would send reports of its own, offline as well
    settings = wandb.setup().settings
    if (mode or settings.mode) == "online" and not authenticate_session(
        host=settings.base_url, source="hookbus", prompt=False, update_session=False
    ):
        raise HookError(
            "wandb has no key for an online run. Say `wandb login` once, set WANDB_API_KEY, or give mode: offline. "
            "Nothing is recorded."
        )


def _keep(file: Path, text: str) -> None:
    temporary = file.with_name(f".{file.name}")
    temporary.write_text(text)
    os.replace(temporary, file)


def _holds_secret(argument: str) -> bool:
    return is_secret(argument.partition("=")[0]) or without_secrets(argument) != argument


def _is_foreign(path: str, root: str) -> bool:
    parts = Path(path).relative_to(root).parts
    return any(part.startswith(".") or part == "site-packages" for part in parts)


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of W&B as a `Writer` raises them."""
    try:
        yield
    except (HandleAbandonedError, MailboxClosedError) as error:
        with suppress(OSError):  # it says once more that the process is gone
            wandb.teardown()
        raise OSError("W&B: its process has ended") from error
    except (CommError, ServerResponseError, WandbCoreNotAvailableError, TimeoutError) as error:
        raise OSError(f"W&B: {error}") from error
