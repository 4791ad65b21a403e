"""Kills a training again and again, and looks each time at what is left. A program of its own: it forks.

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
from hookbus.checkpoints.files import newest_first, verify
from hookbus.state import find_newest
from hookbus.testing import fake_training
from hookbus_checkpoint import CheckpointHook

LONGEST = 0.03
"""Seconds after a save has begun in which the training is killed: most are over sooner."""


class Tells(Hook):
    """Tells another process of each save that begins."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        self.pipe = pipe

    def before_save_checkpoint(self) -> None:
        os.write(self.pipe, b"!")


def train(directory: Path, mode: bool | str, pipe: int, *, epochs: int = 10**6) -> None:
    """Go on with the training of a directory: a file each iteration, the best each epoch, the last always."""
    hook = CheckpointHook(interval=1, by_epoch=False, max_keep_ckpts=2, async_save=mode)
    scores = lambda epoch: {"accuracy": epoch / 1e6}  # noqa: E731
    fake_training([hook, Tells(pipe)], epochs=epochs, batches=2, scores=scores, work_dir=directory, resume="auto")


def killed(directory: Path, mode: bool | str, chance: random.Random) -> int:
    """Train in a new process and kill it at any instant. Returns how many saves are over at least."""
    saves, (ready, told) = chance.randrange(4), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            train(directory, mode, told)
        except BaseException:
            traceback.print_exc()
        os._exit(1)  # it was to be killed
    os.close(told)
    for _ in range(saves):
        os.read(ready, 1)
    time.sleep(chance.uniform(0, LONGEST))
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "the training ended by itself"
    os.close(ready)
    return max(saves - 1, 0)


def newest(folder: Path) -> int:
    """The generation from which a training would go on, 0 where there is none; every vouched file is whole."""
    for path in newest_first(folder):
        verify(path)
    found = find_newest(folder)
    return 0 if found is None else verify(found[0]).generation


def main(directory: Path, mode: Any, kills: int) -> dict[str, Any]:
    """Returns how many saves there were, and at least, how often a kill came amid one, and what is left in the end."""
    os.fsync = lambda fd: None  # a kill leaves what was written, flushed or not
    nobody, chance, folder = os.open(os.devnull, os.O_WRONLY), random.Random(kills), directory / "checkpoints"
    train(directory / "before", mode, nobody, epochs=1)  # whatever is imported late is there now
    generation = least = amid = 0
    for _ in range(kills):
        least += killed(directory, mode, chance)
        now = newest(folder)
        assert now >= generation, f"generation {now} after {generation}"
        generation = now
        amid += any(folder.glob(".tmp-*"))
    found = find_newest(folder)
    assert found is not None
    train(directory, mode, nobody, epochs=found[1]["meta"]["epoch"] + 2)
    left = sorted(path.name for path in folder.iterdir() if not path.name.startswith("iter_"))
    periodic = sum(1 for _ in folder.glob("iter_*.pth"))
    return {"generation": generation, "least": least, "amid": amid, "left": left, "periodic": periodic}


if __name__ == "__main__":
    modes: dict[str, Any] = {"false": False, "true": True, "overlap": "overlap"}
    print(json.dumps(main(Path(sys.argv[1]), modes[sys.argv[2]], int(sys.argv[3]))))  # noqa: T201
