"""Kill a training repeatedly, and check the remaining checkpoints after each kill. A separate program, since it forks.

python killing.py DIRECTORY MODE KILLS
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from hookbus import Hook
from hookbus.checkpoint.sidecars import list_newest_first, verify
from hookbus.checkpoint.state import iter_checkpoints
from hookbus.testing import fake_training
from hookbus_checkpoint import CheckpointHook

LONGEST = 0.03
"""Maximum time in seconds from the start of a save to the kill. Most saves are shorter."""


class SaveNotifier(Hook):
    """Notify another process of the start of each save through a pipe."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        self.pipe = pipe

    def before_save_checkpoint(self) -> None:
        os.write(self.pipe, b"!")


def train(directory: Path, mode: bool | str, pipe: int, *, epochs: int = 10**6) -> None:
    """Resume the training of a directory, with a checkpoint per iteration, and best and last checkpoints."""
    hook = CheckpointHook(interval=1, by_epoch=False, max_keep_ckpts=2, async_save=mode)
    scores = lambda epoch: {"accuracy": epoch / 1e6}  # noqa: E731
    fake_training(
        [hook, SaveNotifier(pipe)], epochs=epochs, batches=2, scores=scores, work_dir=directory, resume="auto"
    )


def train_and_kill(directory: Path, mode: bool | str, rng: random.Random) -> int:
    """Train in a new process, kill it at a random time, and return the minimum number of completed saves."""
    saves, (read_end, write_end) = rng.randrange(4), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            train(directory, mode, write_end)
        except BaseException:
            traceback.print_exc()
        os._exit(1)  # not reached if the process is killed
    os.close(write_end)
    for _ in range(saves):
        os.read(read_end, 1)
    time.sleep(rng.uniform(0, LONGEST))
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "the training ended before the kill"
    os.close(read_end)
    return max(saves - 1, 0)


def get_newest_generation(folder: Path) -> int:
    """Verify all checkpoints, and return the generation from which a training resumes, 0 without checkpoints."""
    for path in list_newest_first(folder):
        verify(path)
    newest = find_newest(folder)
    return 0 if newest is None else verify(newest[0]).generation


def find_newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest valid checkpoint, None if there is none."""
    checkpoints = ((path, checkpoint) for path, checkpoint, _ in iter_checkpoints(folder) if checkpoint is not None)
    return next(checkpoints, None)


def main(directory: Path, mode: Any, kills: int) -> dict[str, Any]:
    """Kill a training, resume it after each kill, and return statistics of saves, kills and remaining files."""
    os.fsync = lambda fd: None  # the page cache survives a kill of the process
    null, rng, folder = os.open(os.devnull, os.O_WRONLY), random.Random(kills), directory / "checkpoints"
    train(directory / "before", mode, null, epochs=1)  # imports all modules before the first fork
    generation = least = amid = 0
    for _ in range(kills):
        least += train_and_kill(directory, mode, rng)
        current = get_newest_generation(folder)
        assert current >= generation, f"generation {current} after {generation}"
        generation = current
        amid += any(folder.glob(".tmp-*"))
    newest = find_newest(folder)
    assert newest is not None
    train(directory, mode, null, epochs=newest[1]["meta"]["epoch"] + 2)
    left = sorted(path.name for path in folder.iterdir() if not path.name.startswith("iter_"))
    periodic = sum(1 for _ in folder.glob("iter_*.pth"))
    return {"generation": generation, "least": least, "amid": amid, "left": left, "periodic": periodic}


if __name__ == "__main__":
    modes: dict[str, Any] = {"false": False, "true": True, "overlap": "overlap"}
    print(json.dumps(main(Path(sys.argv[1]), modes[sys.argv[2]], int(sys.argv[3]))))  # noqa: T201
