"""Mutations of a valid run file and of overrides."""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML

from tests.campaigns.campaign import Campaign
from tests.campaigns.commands import run_command

RUN_FILE: dict[str, Any] = {
    "work_dir": "runs/x",
    "seed": 0,
    "model": {"type": "mlp"},
    "dataset": {"type": "digits", "batch_size": 64},
    "optimizer": {"type": "AdamW", "lr": 0.001},
    "loss": "cross_entropy",
    "metrics": ["accuracy"],
    "scheduler": {"type": "CosineAnnealingLR", "T_max": 20},
    "training": {"epochs": 1, "accumulate": 1, "precision": "fp32"},
    "hooks": [{"type": "checkpoint", "interval": 1}, {"type": "ema", "momentum": 0.9}, {"type": "jsonl", "path": "x"}],
}
VALUES: list[Any] = [
    None, True, -1, 0, 10**30, -1.5, float("nan"), float("inf"), "", "x" * 100_000, "é\u202e\u0301", "a\nb",
    "\x1b]0;x\x07",
    "../" * 50, "$" + "{env:MISSING}", [], [[]], {}, {"type": "x"}, {"a": {"b": {"c": 1}}}, list(range(3000)),
]  # fmt: skip
TEXTS = (
    "[" * 5000, "{a: " * 2000, "a: 1\na: 2\n", "a: &x [*x]\n", "a: &a [1]\nb: &b [*a, *a]\nc: [*b, *b, *b]\n", "\x00",
    "!!python/object/apply:os.system [touch canary]\n", "- " * 500, "? ? ?", "\ud800", "a: |\n b\n\tc",
    "%YAML 9.9\n---\n",
)  # fmt: skip
OVERRIDES = ("{}={}", "{}.x={}", "{}[0]={}", "~{}.{}", "{}")
DEFAULT_TRIALS = 300


def fuzz(campaign: Campaign, trials: int | None) -> None:
    """Check mutated run files and overrides: exit code 0 or 2, few lines, no traceback."""
    yaml = YAML(typ="safe", pure=True)
    for trial in range(trials or DEFAULT_TRIALS):
        directory, chooser = campaign.create_directory(), campaign.random
        kind = ("values", "text", "overrides")[trial % 3]
        row, config = campaign.get_row(f"mutated {kind}"), copy.deepcopy(RUN_FILE)
        if kind == "values":
            mutate_values(config, chooser)
        with open(directory / "run.yaml", "w", errors="surrogatepass") as file:
            yaml.dump(config, file)
        if kind == "text":
            data = mutate_text((directory / "run.yaml").read_bytes(), chooser)
            (directory / "run.yaml").write_bytes(data)
        overrides = [mutate_override(chooser) for _ in range(chooser.randint(1, 3))] if kind == "overrides" else []
        done = run_command(directory, chooser.choice(("check", "explain")), "run.yaml", *overrides)
        row.trials += 1
        row.refused += done.code == 2
        bad = done.check(0, 2) + (["code was executed"] if (directory / "canary").exists() else [])
        if bad:
            row.bad.append(f"{directory}: {', '.join(bad)} {[text[:80] for text in overrides] or ''}")
        else:
            shutil.rmtree(directory)


def iterate_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container and key of a nested value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(items):
        yield value, key
        yield from iterate_places(part)


def mutate_values(config: dict[str, Any], chooser: random.Random) -> None:
    """Replace, rename or remove a few values."""
    for _ in range(chooser.randint(1, 3)):
        container, key = chooser.choice(list(iterate_places(config)))
        if chooser.random() < 0.7 or isinstance(container, list):
            container[key] = copy.deepcopy(chooser.choice(VALUES))
        else:
            container[str(chooser.choice(("x", "hook\x07", "é" * 300, key + "s")))] = container.pop(key)


def mutate_text(data: bytes, chooser: random.Random) -> bytes:
    """Insert, remove or replace a few bytes."""
    text = bytearray(data)
    at = chooser.randrange(len(text))
    inserted = chooser.choice(TEXTS).encode(errors="surrogatepass")
    text[at : at + chooser.choice((0, 0, 1, 20))] = chooser.choice(
        (inserted, inserted, bytes([chooser.randrange(256)]))
    )
    return bytes(text)


def mutate_override(chooser: random.Random) -> str:
    """Return an override of a key with an unexpected value."""
    names = ["training.epochs", "hooks.ema.momentum", "hooks", "model", "", ".", "a" * 5000, "training..epochs"]
    values = [*(str(value)[:5000].replace("\x00", "") for value in VALUES), "[" * 3000, "{a: ", "*x", "!!x y"]
    return chooser.choice(OVERRIDES).format(chooser.choice(names), chooser.choice(values))
