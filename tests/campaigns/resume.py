"""Trainings that signals interrupt at random times."""

from __future__ import annotations

import signal

from tests.campaigns.campaign import Campaign
from tests.campaigns.processes import finish, interrupt, start
from tests.campaigns.training import LOOPS, SAVING, Case
from tests.coverings import covering_combinations

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
STOPS = {signal.SIGINT: 130, signal.SIGTERM: 75, signal.SIGUSR1: 75}
MAX_KILLS = 3
DEFAULT_TRIALS = 5
RANKS = [Case("Trainer", False, 0, 2, launched=True), Case("epochs", True, 2, 2, launched=True)]


def select_cases() -> list[Case]:
    """Return cases of one process that contain each pair of values of any two settings."""
    return [Case(*values) for values in covering_combinations([("Trainer", *LOOPS), SAVING, (0, 2)])]


def interrupt_all(campaign: Campaign, trials: int | None) -> None:
    """Interrupt trainings of one process."""
    for case in select_cases() * (trials or DEFAULT_TRIALS):
        interrupt_and_resume(campaign, case)


def interrupt_ranks(campaign: Campaign, trials: int | None) -> None:
    """Interrupt trainings of two processes; a single trial is that of the Trainer."""
    for case in (RANKS if trials != 1 else RANKS[:1]) * (trials or DEFAULT_TRIALS):
        interrupt_and_resume(campaign, case)


def interrupt_and_resume(campaign: Campaign, case: Case) -> None:
    """Interrupt a training at random times, complete it, and compare the results."""
    row, reference = campaign.get_row(str(case)), campaign.get_reference(case)
    directory, stopped = campaign.create_directory(), set()
    row.trials += 1
    for _ in range(campaign.random.randint(1, MAX_KILLS)):
        number, group = campaign.random.choice(SIGNALS), campaign.random.random() < 0.5 or case.ranks > 1
        training = start(case, directory)
        if not interrupt(training, number, campaign.random.uniform(0, 0.9 * reference.seconds), group=group):
            break
        code = finish(training)
        row.kills += number == signal.SIGKILL
        # Before the run begins, an interrupt ends the process as it ends any other.
        began = (directory / "run" / "status.json").exists()
        if case.ranks == 1 and began and code not in (0, -number, STOPS.get(number)):
            row.bad.append(f"{directory}: exit code {code} after {number.name}")
            return
        if code == STOPS.get(number):
            stopped.add(str(training.pid))
    campaign.complete(case, directory, row, reference, stopped)
