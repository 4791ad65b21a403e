"""Scripts end without a crash in the threads of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PENDING_WORK = """
    import time, weakref

    import torch
    import torch.distributed as dist
    import toys
    from hookbus import HookBus

    def block_for_200_ms(_):
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            pass

    def start_pending_work():
        tensor = torch.ones(1)
        # the callback runs on the thread that drops the last reference, usually one of torch
        references.append(weakref.ref(tensor, block_for_200_ms))
        dist.all_reduce(tensor)

    references = []
"""

SCRIPTS = {
    "Trainer": """
    trainer = toys.trainer(epochs=1, val_loader=toys.loader())
    trainer.fit()
    """,
    "custom loop": """
    with HookBus().run(epochs=1) as run:
        for epoch in run.epochs():
            run.bus.emit("after_train_iter")
    """,
    "custom loop with its own process group": """
    dist.init_process_group("gloo")
    with HookBus().run(epochs=1) as run:
        for epoch in run.epochs():
            run.bus.emit("after_train_iter")
    """,
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_rank_aborts_at_the_end_of_a_script(script: str, launch: Launch) -> None:
    # The abort is a race at interpreter exit: four ranks make it likely.
    scenario = PENDING_WORK + SCRIPTS[script] + "\n    start_pending_work()\n    report('done')"
    # torch is imported five times at once, half a minute of two cores if it is a build for GPUs
    completed = launch(scenario, ranks=4, torchrun=True, time_limit=120)

    assert completed.reports == dict.fromkeys(range(4), "done")
    assert [completed.output(rank) for rank in range(4)] == [""] * 4
