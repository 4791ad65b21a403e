"""Files of offline runs of W&B."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any


def read_rows(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of the only offline run in a directory, when the process of W&B has written its last record.

    The timeout of the test is the limit.
    """
    from hookbus_wandb.files import TransactionLog

    (path,) = directory.rglob("run-*.wandb")
    while not any(record.HasField("exit") for record in TransactionLog(path).read_records()):
        time.sleep(0.01)
    return [*TransactionLog(path).read_rows()]
