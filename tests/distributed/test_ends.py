"""Scripts of users end as scripts end: nothing in them takes care of torch's threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LATE = """
    import time, weakref

    import torch
    import torch.distributed as dist
    import toys
    from hookbus import HookBus

    def put_away(_):
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            pass

    def leave_work_behind():
        tensor = torch.ones(1)
        watched.append(weakref.ref(tensor, put_away))  # called by who drops it last: mostly a thread of torch
        dist.all_reduce(tensor)

    watched = []
"""

SCRIPTS = {
    "a Trainer": """
    trainer = toys.trainer(epochs=1, val_loader=toys.loader())
    trainer.fit()
    """,
    "a loop": """
    with HookBus().run(epochs=1) as run:
        for epoch in run.epochs():
            run.bus.emit("after_train_iter")
    """,
    "a loop with a group of its own": """
    dist.init_process_group("gloo")
    with HookBus().run(epochs=1) as run:
        for epoch in run.epochs():
            run.bus.emit("after_train_iter")
    """,
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_process_aborts_at_the_end_of_a_script(script: str, launch: Launch) -> None:
    """Each time four of them, each with a thread that is late."""
    for _ in range(2):
        done = launch(LATE + SCRIPTS[script] + "\n    leave_work_behind()\n    answer('done')", ranks=4)

        assert done.answers == dict.fromkeys(range(4), "done")
        assert [done.output(rank) for rank in range(4)] == [""] * 4
