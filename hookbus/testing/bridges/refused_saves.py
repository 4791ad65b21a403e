"""Check of checkpoints that a hook refuses."""

from __future__ import annotations

from pathlib import Path

from hookbus._run.run import Run
from hookbus.hook import Hook
from hookbus.testing.bridges.trainings import Kit
from hookbus.testing.hosts import HostTask
from hookbus.testing.states import ensure


class Refuser(Hook):
    """Abort the run when a checkpoint is about to be saved.

    Args:
        directory: Directory of the checkpoints.
        after: Number of iterations after which checkpoints are refused.
        request_at: Number of iterations after which a checkpoint is requested; None for no request.

    Attributes:
        refused_at: Number of iterations when the first checkpoint was refused; None before.
        files: Files before that checkpoint.
    """

    def __init__(self, directory: Path, after: int, request_at: int | None) -> None:
        super().__init__()
        self._directory, self._after, self._request_at = directory, after, request_at
        self.refused_at: int | None = None
        self.files: dict[str, bytes] = {}

    def after_train_iter(self, run: Run) -> None:
        """Keep the files, and request a checkpoint."""
        if self.refused_at is None:
            self.files = read_files(self._directory)
        if run.iters_done + 1 == self._request_at:
            run.request_save("requested")

    def before_save_checkpoint(self, run: Run) -> None:
        """Abort the run."""
        if run.iters_done > self._after and self.refused_at is None:
            self.refused_at = run.iters_done
            run.request_abort("the weights are corrupted")


def check_refused_save(kit: Kit, directory: Path) -> None:
    """Check that a hook can prevent a checkpoint of corrupted weights, and that the earlier ones are kept."""
    capabilities = kit.capabilities
    if "host" not in capabilities.checkpoints or not capabilities.honors("stop"):
        return
    length = HostTask().epoch_length
    for request_at in (None, length + 3) if capabilities.honors("save") else (None,):
        place = directory / f"requested-{request_at}"
        hook = Refuser(place / "host", length, request_at)
        run = kit.train(HostTask(epochs=3), place, [hook], checkpoints="host").run
        subject = f"refused save {'of an epoch' if request_at is None else 'that a hook has requested'}"
        ensure(hook.refused_at is not None, f"{subject}: before_save_checkpoint should be emitted, got none.")
        ensure(run.outcome == "aborted", f"{subject}: the outcome should be 'aborted', got {run.outcome!r}.")
        ensure(
            run.iters_done == hook.refused_at or capabilities.requests["stop"] == "epoch",
            f"{subject}: the training should end after iteration {hook.refused_at}, got {run.iters_done}.",
        )
        changed = sorted({name for name, _ in hook.files.items() ^ read_files(place / "host").items()})
        ensure(not changed, f"{subject}: should change no file of the trainer, got changes of {', '.join(changed)}.")


def read_files(directory: Path) -> dict[str, bytes]:
    """Return the content of the files in a directory by their relative path."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}
