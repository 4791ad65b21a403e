from __future__ import annotations

import pytest

from hookbus.checkpoints.plain import check_plain
from hookbus.errors import CheckpointError


def test_check_plain_says_where() -> None:
    check_plain({"a": 1}, "checkpoint")
    with pytest.raises(CheckpointError, match=r"^checkpoint\['a'\] is a object"):
        check_plain({"a": object()}, "checkpoint")
