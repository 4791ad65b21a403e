"""`Writer` of Weights & Biases."""

from __future__ import annotations

import html
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import wandb
from wandb.errors import AuthenticationError, CommError, WandbCoreNotAvailableError
from wandb.sdk.lib.wbauth import authenticate_session
from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError
from wandb.sdk.mailbox.mailbox_handle import ServerResponseError

from hookbus import Writer
from hookbus.checkpoint import atomic_write
from hookbus.errors import HookError, format_path
from hookbus.writers import RecordKey, is_secret, read_regular_file, redact, to_finite_array, to_pil_image
from hookbus_wandb.config import STEP, WandbConfig, to_artifact_name
from hookbus_wandb.files import TransactionLog, find_run_files, read_record_keys, read_scalars

ID_FILE = "run_id"
MAX_ID_BYTES = 200
"""Maximum size of a file that contains an ID."""
FLUSH_INTERVAL_SECONDS = 0.2
"""Interval at which the process of W&B writes its buffer to the file."""
TIMEOUT_SECONDS = 10.0
"""Maximum number of seconds until a row is in the file."""
INIT_TIMEOUT_SECONDS = 20.0
"""Default of `WANDB_INIT_TIMEOUT`. The default of W&B, 90 s, leaves no time for retries and delays the exit."""
REJECTED_CREDENTIALS = re.compile(r"\berror (?:401|403)\b")
"""Part of the message of a `CommError` that no retry can avoid."""
EXIT_CODES = {"finished": 0, "stopped": 0, "interrupted": 255}
"""Exit codes that W&B shows as finished and as killed by Ctrl-C; every other outcome has exit code 1, failed."""


_process_lock = threading.RLock()
"""Lock for the start and the end of W&B's process, which are not thread-safe, for multiple writers of a process."""


@contextmanager
def _preserve_exit_hooks() -> Iterator[None]:
    """Restore `sys.exit` and `sys.excepthook` on exit; only one thread at a time enters the context."""
    # W&B replaces both permanently to capture the exit code (wandb 0.31), which `write_outcome` sets instead.
    with _process_lock:
        original = sys.exit, sys.excepthook
        try:
            yield
        finally:
            sys.exit, sys.excepthook = original


@dataclass(frozen=True)
class Target:
    """W&B run that a writer logs to.

    Attributes:
        directory: Absolute path of the directory that contains the ID of the run and the files of W&B.
        run_id: ID of the run.
        settings: Settings of the hook: `mode`, `project` and `resume`.
        name: Name of the run.
        config: Values that take precedence over the configuration of the run; without secrets.
        owner: ID of the run of hookbus, for the names of temporary files.
        hides_command: Whether to log no metadata, because the command line contains a secret of the run. Metadata is
            not logged either if an argument has the name or the form of a secret.
    """

    directory: Path
    run_id: str
    settings: WandbConfig = field(default_factory=WandbConfig)
    name: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    owner: str = ""
    hides_command: bool = False

    @_preserve_exit_hooks()
    def start_run(self) -> Any:
        """Start the W&B run, or resume it.

        Returns:
            The `wandb.Run`.

        Raises:
            HookError: If `resume` is "must" and the offline run does not exist. For an online run W&B raises its own
                error.
        """
        has_user_service = wandb.env.SERVICE in os.environ
        self.directory.mkdir(parents=True, exist_ok=True)
        # Stored before W&B creates the run: after a kill in between, the next process continues this run.
        atomic_write(self.directory / ID_FILE, lambda file: file.write(self.run_id.encode()), run=self.owner)
        exists = bool(find_run_files(self.directory, self.run_id))
        # W&B does not check `resume` for offline runs (wandb 0.31).
        resume, mode = self.settings.resume, self.settings.mode
        if resume == "must" and not exists and (mode or wandb.setup().settings.mode) == "offline":
            raise HookError(
                f"wandb: `resume: must` requires an existing W&B run, but {self.directory} contains no run "
                f"{self.run_id}. Set `work_dir` to that of the run, or set `resume: allow`. Nothing is logged."
            )
        run = wandb.init(
            id=self.run_id,
            # After an error the hook creates another writer for the same run, which "never" would reject.
            resume="allow" if resume == "never" and exists else resume,
            mode=mode,
            project=self.settings.project,
            name=self.name,
            config=dict(self.config),
            dir=self.directory,
            reinit="create_new",  # keeps a W&B run of the user active
            settings=wandb.Settings(
                console="off",
                init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", INIT_TIMEOUT_SECONDS)),
                x_transaction_log_flush_interval=FLUSH_INTERVAL_SECONDS,
                x_disable_meta=self.hides_command or _contains_secret(sys.argv),  # metadata contains the command line
            ),
        )
        # Child processes find the W&B process of their parent by this variable. A killed child would leave its run open
        # in that process, so without the variable each child starts its own.
        if not has_user_service:
            os.environ.pop(wandb.env.SERVICE, None)
        return run


class WandbWriter(Writer):
    """Writer that logs to one W&B run.

    W&B drops rows with decreasing steps. The W&B step therefore counts the rows of all processes of the run, and the
    step of a record is the scalar `trainer/step` of its row, which is the x-axis of all charts.

    Args:
        target: W&B run to log to.
    """

    def __init__(self, target: Target) -> None:
        self._target, self._exit_code = target, 1
        earlier = find_run_files(target.directory, target.run_id)
        self._existing_keys, rows = read_record_keys(earlier)
        with _translate_errors():
            self._run: Any = target.start_run()
            sent = self._run.starting_step
            self._next_row = self._flushed_rows = max(rows, sent)
            self._run.define_metric(STEP, hidden=True)
            self._run.define_metric("*", step_metric=STEP)
        self._transaction_log = None if self._run.disabled else TransactionLog(Path(self._run.settings.sync_file))
        if sent < rows and not self._run.offline and not self._run.disabled:
            self._log_missing_scalars(earlier, sent)

    def write_scalar(self, name: str, value: Any, step: int) -> None:
        """Log a scalar, including NaN and infinities."""
        self._log_row("scalar", {name: value}, step)

    def write_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Log the scalars of one step in one row."""
        self._log_row("scalar", values, step)

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        """Log a uint8 image of shape (H, W, C) as a PNG file."""
        self._log_row("image", {name: wandb.Image(to_pil_image(image), caption=caption, file_type="png")}, step)

    def write_histogram(self, name: str, values: Any, step: int) -> None:
        """Log a histogram of the finite values with 64 bins.

        Raises:
            ValueError: If no value is finite.
        """
        self._log_row("histogram", {name: wandb.Histogram(to_finite_array(name, values))}, step)

    def write_text(self, name: str, text: str, step: int) -> None:
        """Log a text as preformatted HTML."""
        self._log_row("text", {name: wandb.Html(f"<pre>{html.escape(text)}</pre>")}, step)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Update the configuration of the run; values of `Target.config` take precedence."""
        with _translate_errors():
            # After a resume the configuration can differ from the stored one, which W&B rejects by default.
            self._run.config.update({**config, **self._target.config}, allow_val_change=True)

    def write_artifact(self, path: Path, name: str | None = None) -> None:
        """Upload a file as an artifact."""
        self._log_artifact(path, f"run-{self._target.run_id}-{name or path.name}", "file", [])

    def write_model(self, path: Path, is_best: bool) -> None:
        """Upload a checkpoint file as a version of the artifact `model-<run id>`.

        Args:
            path: Path of the file; its name without suffix is an alias of the version.
            is_best: Whether the version gets the alias `best`.

        Raises:
            ValueError: If the file does not exist.
        """
        if not path.is_file():  # not an OSError, after which the hook would retry
            raise ValueError(f"checkpoint file does not exist: {path}")
        self._log_artifact(path, f"model-{self._target.run_id}", "model", ["latest", path.stem, *["best"] * is_best])

    def write_code(self, root: Path) -> None:
        """Upload the Python files below a directory, without hidden files and installed packages."""
        with _translate_errors():
            self._run.log_code(str(root), exclude_fn=_is_excluded)

    def write_outcome(self, outcome: str) -> None:
        """Set the state of the W&B run: finished, failed, killed or preempted."""
        self._exit_code = EXIT_CODES.get(outcome, 1)
        if outcome == "preempted":
            with _translate_errors():
                self._run.mark_preempting()

    def resume(self, since: int, step: int) -> frozenset[RecordKey]:
        """Return the logged records from step `since` on; W&B cannot remove later ones."""
        return frozenset(key for key in self._existing_keys if key[2] >= since)

    def flush(self) -> None:
        """Wait until all rows are in the file of W&B.

        Raises:
            OSError: If a row is not in the file after `TIMEOUT_SECONDS` seconds, or the process of W&B has ended.
        """
        # The process of W&B reports neither a full disk nor the writing of a row, so the file itself is read.
        with _translate_errors():
            _ = self._run.step  # a request to the process of W&B, which fails if the process has ended
        if self._flushed_rows < self._next_row:
            self._wait_for_record(
                lambda record: record.HasField("history") and record.history.step.num + 1 >= self._next_row
            )
            self._flushed_rows = self._next_row
        self._existing_keys = set()

    def close(self) -> None:
        """Finish the W&B run, and wait until its file contains the end. May be called twice.

        Raises:
            OSError: If the end of the run is not in the file after `TIMEOUT_SECONDS` seconds.
        """
        run, self._run = self._run, None
        if run is not None:
            with _translate_errors():
                run.finish(exit_code=self._exit_code)
            self._wait_for_record(lambda record: record.HasField("exit"))
            # The process of W&B is stopped with its last run; an active run of the user still needs it.
            with _process_lock:
                if wandb.setup().most_recent_active_run is None:
                    wandb.teardown()

    def _log_row(self, kind: str, values: Mapping[str, Any], step: int) -> None:
        """Log one row, without the records that an earlier writer of this run has logged."""
        new = {name: value for name, value in values.items() if (kind, name, step) not in self._existing_keys}
        if new:
            with _translate_errors():
                self._run.log({**new, STEP: step}, step=self._next_row, commit=True)
            self._next_row += 1

    def _log_missing_scalars(self, files: list[Path], first: int) -> None:
        """Log the scalars again that an earlier process stored in its file but did not upload before it was killed."""
        self._existing_keys, _ = read_record_keys(files, before=first)
        for scalars, step in read_scalars(files, first):
            self._log_row("scalar", scalars, step)
            self._existing_keys.update(("scalar", name, step) for name in scalars)

    def _wait_for_record(self, predicate: Callable[[Any], bool]) -> None:
        """Wait until the file of W&B contains a record that fulfills the predicate."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self._transaction_log is not None and not any(map(predicate, self._transaction_log.read_records())):
            if time.monotonic() > deadline:
                raise OSError(
                    f"W&B: the logged records are not in {self._transaction_log.path} after {TIMEOUT_SECONDS:g} s. "
                    "Check that the disk is not full."
                )
            time.sleep(FLUSH_INTERVAL_SECONDS / 10)

    def _log_artifact(self, path: Path, name: str, kind: str, aliases: list[str]) -> None:
        artifact = wandb.Artifact(to_artifact_name(name), type=kind)
        # `skip_cache`, or else W&B would copy each checkpoint to its cache in addition to the staging directory.
        artifact.add_file(str(path), name=path.name, skip_cache=True)
        with _translate_errors():
            self._run.log_artifact(artifact, aliases=aliases)


def get_run_id(directory: Path, *, new: bool) -> str:
    """Return the run ID stored in a directory; a new ID if none is stored or `new` is true.

    Raises:
        HookError: If the file of the ID cannot be read, or contains none.
    """
    file = directory / ID_FILE
    if new or not os.path.lexists(file):
        return token_hex(4)
    try:
        known = read_regular_file(file, MAX_ID_BYTES).decode().strip()
    except (OSError, UnicodeError) as error:
        raise HookError(f"{format_path(file)}: the ID of the W&B run cannot be read: {error}. Remove it.") from error
    if known and not re.fullmatch(r"[^\s/\\#?%:]+", known):
        raise HookError(f"{format_path(file)}: expected the ID of a W&B run, got {known[:40]!r}. Remove the file.")
    return known or token_hex(4)


@_preserve_exit_hooks()
def prepare(mode: str | None) -> None:
    """Check that an online run has an API key, and disable the error reporting of W&B by default.

    Raises:
        HookError: If the run is online and no API key is configured.
    """
    # W&B sends reports of its own errors to its developers, also from offline runs.
    os.environ.setdefault(wandb.env.ERROR_REPORTING, "false")
    settings = wandb.setup().settings
    # Without a prompt: `wandb.init` would wait for input in the middle of a training.
    if (mode or settings.mode) == "online" and not authenticate_session(
        host=settings.base_url, source="hookbus", prompt=False, update_session=False
    ):
        raise HookError(
            "wandb: no API key for an online run. Run `wandb login` once, set WANDB_API_KEY, or set `mode: offline`. "
            "Nothing is logged."
        )


def _contains_secret(arguments: list[str]) -> bool:
    names = [argument.partition("=")[0] for argument in arguments]
    return any(map(is_secret, names)) or redact(arguments) != arguments


def _is_excluded(path: str, root: str) -> bool:
    parts = Path(path).relative_to(root).parts
    return any(part.startswith(".") or part == "site-packages" for part in parts)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Convert errors of W&B to the `OSError` of a `Writer`, after which the hook retries.

    Rejected credentials become a `HookError`.
    """
    try:
        yield
    except (HandleAbandonedError, MailboxClosedError) as error:
        with suppress(OSError):  # `teardown` reports again that the process has ended
            wandb.teardown()
        raise OSError("W&B: the process of W&B has ended") from error
    except (CommError, ServerResponseError, WandbCoreNotAvailableError, TimeoutError) as error:
        if isinstance(error, AuthenticationError) or REJECTED_CREDENTIALS.search(str(error)):
            raise HookError(f"W&B: {error}") from error
        raise OSError(f"W&B: {error}") from error
