"""Damaged bytes in every file of an interrupted training."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.campaigns.campaign import Campaign, flatten
from tests.campaigns.operations import SHORT
from tests.campaigns.preload import Fault
from tests.campaigns.processes import ForkedTraining, finish
from tests.campaigns.training import Case

CASE = Case("Trainer", epochs=SHORT)
DAMAGES = ("flip", "truncate", "zero", "empty", "append", "remove")
DEFAULT_TRIALS = 3


def damage_files(campaign: Campaign, trials: int | None) -> None:
    """Damage each file of a killed training in several ways, and resume."""
    original = campaign.create_directory()
    count = campaign.create_directory()
    finish(ForkedTraining(CASE, count, lambda: Fault().arm(count)))
    at = len((count / "operations.txt").read_text().splitlines()) * 2 // 3
    finish(ForkedTraining(CASE, original, lambda: Fault(at).arm(original)))
    files = sorted(path.relative_to(original) for path in (original / "run").rglob("*") if path.is_file())
    chosen = [(path, damage) for path in files for damage in DAMAGES for _ in range(trials or DEFAULT_TRIALS)]
    for path, damage in chosen if trials != 1 else chosen[:: len(DAMAGES) // 2 + 2]:
        _damage_and_resume(campaign, original, path, damage)


def _damage_and_resume(campaign: Campaign, original: Path, path: Path, damage: str) -> None:
    row, directory = campaign.get_row(f"damaged bytes: {damage}"), campaign.create_directory()
    row.trials += 1
    subprocess.run(["cp", "-a", f"{original}/run", directory], check=True)
    offset = apply_damage(directory / path, damage, campaign.random)
    code = finish(ForkedTraining(CASE, directory))
    output = (directory / "output.txt").read_text()
    if code in (1, 2) and "Traceback" not in output:
        row.refused += 1
    elif code != 0:
        row.bad.append(f"{directory}: {damage} at {offset} of {path}: exit code {code}")
        return
    elif wrong := _compare(campaign, directory, path):
        row.bad.append(f"{directory}: {damage} at {offset} of {path}: different {', '.join(wrong)}")
        return
    shutil.rmtree(directory)


def _compare(campaign: Campaign, directory: Path, damaged: Path) -> list[str]:
    """Return the names of the results that differ.

    Rows of a damaged log cannot be compared. A best file without its sidecar is written again under another name,
    which `best` contains.
    """
    results = flatten(json.loads((directory / "results.json").read_text()))
    reference = campaign.get_reference(CASE).results
    skipped = {"log", "last.pth: jsonl"} if "logs" in damaged.parts else set()
    skipped |= {"last.pth: best"} if damaged.name.startswith("best_") else set()
    return [name for name, value in reference.items() if name not in skipped and results.get(name) != value]


def apply_damage(path: Path, damage: str, chooser: random.Random) -> int:
    """Damage a file in place at a random offset, and return the offset. Its hard links are damaged as well."""
    size = path.stat().st_size
    offset = chooser.randrange(size) if size else 0
    edits: dict[str, Callable[[bytearray], None]] = {
        "flip": lambda data: data.__setitem__(
            slice(offset, offset + 1), bytes(b ^ 0x10 for b in data[offset : offset + 1])
        ),
        "truncate": lambda data: data.__delitem__(slice(offset, None)),
        "zero": lambda data: data.__setitem__(slice(offset, offset + 64), bytes(len(data[offset : offset + 64]))),
        "empty": bytearray.clear,
        "append": lambda data: data.extend(b"\x00garbage"),
    }
    if damage == "remove":
        path.unlink()
        return 0
    data = bytearray(path.read_bytes())
    edits[damage](data)
    with open(path, "r+b") as file:
        file.write(data)
        file.truncate()
    return offset
