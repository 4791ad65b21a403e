"""Tests of the JSON schema of run files in the YAML language server, which editors run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hookbus._cli.schema import json_schema
from tests.language_server import find_errors, find_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_server() is None, reason="the YAML language server is not installed"),
]

PLACES = [
    ("hooks: [logger, {type: checkpoint, intervall: 3}]", "intervall", "Property intervall is not allowed"),
    ("hooks: [logger, {type: checkpoint, interval: x}]", "x", "Incorrect type"),
    ("hooks: [logger, {type: loger}]", "loger", "Value is not accepted"),
    ("hooks: [logger, loger]", "loger", "Value is not accepted"),
    ("hooks: [logger, {interval: 3}]", "{", 'Missing property "type"'),
    ("hooks: [logger, 5]", "5", "Incorrect type"),
    ("hooks:\n- type: checkpoint\n- type: logger\n  intervall: 2\n", "intervall", "Property intervall is not allowed"),
    ("hooks: {logger: null, checkpoint: {intervall: 3}}", "intervall", "Property intervall is not allowed"),
    ("hooks: {checkpoint: {interval: x}}", "x", "Incorrect type"),
    ("hooks: {mine: {type: loger}}", "loger", "Value is not accepted"),
    ("hooks: {mine: {type: checkpoint, interval: x}}", "x", "Incorrect type"),
    ("hooks: {loger: {interval: 3}}", "loger", 'Missing property "type"'),
    ("hooks: 5", "5", "Incorrect type"),
    ("sead: 1", "sead", "Property sead is not allowed"),
    ("model: cnn", "cnn", "Incorrect type"),
    ("metrics: [accuracy, 3]", "3", "Incorrect type"),
    ("training: {epochs: 0}", "0", "Value is below the minimum of 1"),
    ("defaults: [3]", "3", "Incorrect type"),
]
"""Run files with one error, the part that is marked, and the start of the message."""
VALID = "hooks:\n- logger\n- {type: checkpoint, interval: 3}\ntraining: {epochs: 1}\n"


def test_error_marks_the_wrong_key_or_value(tmp_path: Path) -> None:
    schema, _ = json_schema()
    path = tmp_path / "run.schema.json"
    path.write_text(json.dumps(schema))
    texts = {f"{number}.yaml": text for number, (text, _, _) in enumerate(PLACES)}
    errors = find_errors(path, {**texts, "valid.yaml": VALID})
    assert errors.pop("valid.yaml") == []
    assert {name: [part for part, _ in marked] for name, marked in errors.items()} == {
        name: [part] for name, (_, part, _) in zip(texts, PLACES, strict=True)
    }
    for name, (_, _, start) in zip(texts, PLACES, strict=True):
        assert errors[name][0][1].startswith(start)
