"""History of a run on several ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch


@pytest.mark.slow
def test_two_ranks_record_the_means_over_both_and_one_of_them_writes(launch: Launch, tmp_path: Path) -> None:
    script = """
        from pathlib import Path
        from hookbus import HookBus

        bus = HookBus()
        with bus.run(epochs=1, work_dir={directory!r}) as run:
            bus.emit("before_train_epoch")
            for i in range(2):
                bus.emit("after_train_iter", outputs={{"loss": float(RANK * 10 + i)}})
            bus.emit("after_train_epoch")
        report(run.history.rows)
    """
    reports = launch(script.format(directory=str(tmp_path / "x"))).reports
    assert reports[0][0]["train/loss"] == reports[1][0]["train/loss"] == (0 + 1 + 10 + 11) / 4
    assert len((tmp_path / "x" / "history.jsonl").read_text().splitlines()) == 1
    assert json.loads((tmp_path / "x" / "history.jsonl").read_text())["iteration"] == 2
