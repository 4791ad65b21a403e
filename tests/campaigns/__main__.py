"""Interrupt and damage trainings, and compare the results with those of uninterrupted trainings.

    python -m tests.campaigns [--only NAME] [--trials N] [--seed S]

The seed determines the cases, the signals, their delays, the errors and the damage. The exit code is 1 if a result
is bad.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.campaigns.campaign import Campaign, Row
from tests.campaigns.damage import damage_files
from tests.campaigns.endurance import endure
from tests.campaigns.fuzz import fuzz
from tests.campaigns.hostile import attack
from tests.campaigns.operations import fail_everywhere, kill_everywhere, kill_ranks
from tests.campaigns.preload import restart_with_library
from tests.campaigns.resume import interrupt_all, interrupt_ranks
from tests.campaigns.training import Case, train

CAMPAIGNS: dict[str, Callable[[Campaign, int | None], None]] = {
    "kills": kill_everywhere,
    "shards": kill_ranks,
    "errors": fail_everywhere,
    "damage": damage_files,
    "fuzz": fuzz,
    "hostile": attack,
    "endurance": endure,
    "resume": interrupt_all,
    "ranks": interrupt_ranks,
}
"""Campaigns by name: functions of the campaign and the number of trials of each case, None for the default."""


def print_table(rows: dict[str, Row], seconds: float) -> None:
    """Print the counts of each case, and what is bad."""
    lines = [f"{'case':60} {'trials':>6} {'kills':>6} {'refused':>8} {'bad':>4}"]
    lines += [f"{name:60} {r.trials:6} {r.kills:6} {r.refused:8} {len(r.bad):4}" for name, r in rows.items()]
    trials, kills, refused = (sum(getattr(r, key) for r in rows.values()) for key in ("trials", "kills", "refused"))
    bad = [text for row in rows.values() for text in row.bad]
    lines.append(f"{'total':60} {trials:6} {kills:6} {refused:8} {len(bad):4}   {seconds:.0f} seconds")
    sys.stdout.write("\n".join([*lines, *bad]) + "\n")


def main() -> int:
    """Run the campaigns, and return the exit code."""
    parser = argparse.ArgumentParser(prog="tests.campaigns", description=__doc__)
    parser.add_argument("--only", choices=CAMPAIGNS, help="campaign to run (default: all)")
    parser.add_argument("--trials", type=int, help="trials of each case (default: all operations, or a few)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the campaign")
    arguments = parser.parse_args()
    if arguments.only in (None, "kills", "shards", "errors", "damage"):
        restart_with_library()
    directory, begin = Path(tempfile.mkdtemp(prefix="campaigns-")), time.monotonic()
    train(Case(), directory)  # imports everything, so that the forks need not
    campaign = Campaign(directory, arguments.seed)
    try:
        for name in [arguments.only] if arguments.only else list(CAMPAIGNS):
            CAMPAIGNS[name](campaign, arguments.trials)
    finally:  # also after Ctrl-C
        print_table(campaign.rows, time.monotonic() - begin)
    if any(row.bad for row in campaign.rows.values()):
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
