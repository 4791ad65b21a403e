"""Tests of the validation of `status.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hookbus._run.status_file import parse_status

GOLDEN = Path(__file__).parents[1] / "golden" / "run-0.1.0" / "status.json"


def test_status_of_a_run_is_returned_with_all_keys() -> None:
    assert parse_status(GOLDEN.read_bytes()) == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run", "../x"),
        ("run", None),
        ("outcome", 3),
        ("checkpoint", ["a"]),
        ("checkpoint", "\ud800"),
        ("epochs_done", -1),
        ("iters_done", 10**30),
        ("steps_done", True),
        ("best", []),
        ("outputs", "logs"),
        ("metrics", {"val/loss": "low"}),
    ],
)
def test_invalid_value_is_reported_with_its_key(key: str, value: Any) -> None:
    status = json.loads(GOLDEN.read_text())
    with pytest.raises(ValueError, match=key if value != "\ud800" else "surrogates"):
        parse_status(json.dumps({**status, key: value}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b"\xff", b"[" * 100_000])
def test_other_content_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"invalid JSON|content|outcome"):
        parse_status(data)
