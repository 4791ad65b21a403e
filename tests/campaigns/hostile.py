"""Hostile entries in the place of every file that a training reads or writes."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.campaigns.campaign import Campaign
from tests.campaigns.commands import run_command

RUN_FILE = """\
work_dir: x
model: {type: mlp}
dataset: {type: digits, batch_size: 512}
training: {epochs: 1}
default_hooks: false
hooks: [{type: checkpoint, out_dir: OUT_DIR}, {type: jsonl, interval: 1}]
"""
PLACES = (
    "x", "x/status.json", "x/config.yaml", "x/.made", "x/.hookbus.lock", "x/.lock", "x/logs", "x/logs/metrics.jsonl",
    "x/checkpoints", "x/checkpoints/last.pth", "x/checkpoints/last.pth.json", "x/checkpoints/epoch_1.pth", "file.pth",
    "y", "y/.hookbus.lock", "y/.made", "y/last.pth", "y/last.pth.json", "y/epoch_1.pth",
)  # fmt: skip
COMMANDS: dict[str, tuple[str, ...]] = {
    "start": (),
    "resume": ("--resume",),
    "overwrite": ("--overwrite",),
    "resume of a run": ("--resume",),
    "overwrite of a run": ("--overwrite",),
    "resume file": ("resume=file.pth",),
    "load file": ("load_from=file.pth",),
}


def find_user_file(path: Path) -> Path:
    """Return the user's file in the directory of a training."""
    return next(folder / "user" for folder in path.parents if (folder / "user").exists())


class Canary:
    """Object whose pickle creates a file when it is loaded."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch canary",)


ENTRIES: dict[str, Callable[[Path], object]] = {
    "link to a file of the user": lambda path: path.symlink_to(find_user_file(path)),
    "FIFO": os.mkfifo,
    "link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "directory": lambda path: path.mkdir(),
    "pickle": lambda path: path.write_bytes(pickle.dumps(Canary())),
    "deep JSON": lambda path: path.write_text("[" * 200_000),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 64),
}


def attack(campaign: Campaign, trials: int | None) -> None:
    """Put each entry in each place, and start, resume and overwrite a training; `trials` limits the combinations."""
    combinations = [(place, entry, command) for place in PLACES for entry in ENTRIES for command in COMMANDS]
    combinations = [c for c in combinations if (c[0] == "file.pth") == c[2].endswith("file")]
    count = min(trials or len(combinations), len(combinations))
    for place, entry, command in campaign.random.sample(combinations, count):
        _attack(campaign, place, entry, command)


def _attack(campaign: Campaign, place: str, entry: str, command: str) -> None:
    row, directory = campaign.get_row(f"hostile files: {command}"), campaign.create_directory()
    (directory / "user").write_text("of the user")
    (directory / "run.yaml").write_text(RUN_FILE.replace("OUT_DIR", "y" if place[0] == "y" else "null"))
    path, trained = directory / place, command.endswith("of a run")
    if trained:
        assert run_command(directory, "train", "run.yaml").code == 0
    put(path, ENTRIES[entry])
    # A run may replace its own files, whatever they contain.
    before = {name: text for name, text in describe(directory).items() if not trained or name.endswith("user")}
    done = run_command(directory, "train", "run.yaml", *COMMANDS[command])
    row.trials += 1
    row.refused += done.code in (1, 2)
    bad = done.check(0, 1, 2) + (["code was executed"] if (directory / "canary").exists() else [])
    after = describe(directory)
    bad += [f"{name} was changed" for name, content in before.items() if after.get(name) != content]
    if bad:
        row.bad.append(f"{directory}: {entry} at {place}, {command}: {', '.join(bad)}")
    else:
        shutil.rmtree(directory)


def put(path: Path, entry: Callable[[Path], object]) -> None:
    """Create an entry in the place of another one, if any."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    entry(path)


def describe(directory: Path) -> dict[str, str]:
    """Return the entries of a directory with hashes of files and targets of links."""
    entries = {}
    for path in directory.rglob("*"):
        if path.is_symlink():
            entries[str(path)] = os.readlink(path)
        elif path.is_file():
            entries[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif not path.is_dir():
            entries[str(path)] = "special"
    return entries
