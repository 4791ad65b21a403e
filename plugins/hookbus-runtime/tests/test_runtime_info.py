from __future__ import annotations

import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import Hook, Run
from hookbus.testing import RecordingBus, check_hook, fake_training
from hookbus_runtime import RuntimeInfoHook


def test_it_keeps_what_every_hook_promises() -> None:
    check_hook(RuntimeInfoHook)


def test_what_runs_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "hookbus"):
        fake_training([RuntimeInfoHook()], seed=7)

    assert f"host: {socket.gethostname()}" in caplog.messages
    assert "seed: 7" in caplog.messages


def test_each_setting_is_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"optimizer": {"type": "SGD", "lr": 0.1}, "metrics": ["accuracy"], "loss": None}
    with caplog.at_level(logging.INFO, "hookbus"):
        fake_training([RuntimeInfoHook()], config=settings)

    assert [line for line in caplog.messages if line.startswith("config")] == [
        "config.optimizer.type: SGD",
        "config.optimizer.lr: 0.1",
        "config.metrics.0: accuracy",
        "config.loss: null",
    ]


def test_secrets_of_the_configuration_are_hidden_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="hookbus"):
        fake_training([RuntimeInfoHook()], config={"hub": {"hf_token": "abc"}})

    assert "config.hub.hf_token: ***" in caplog.messages


def test_what_runs_is_in_the_status_from_the_start_to_the_end(tmp_path: Path) -> None:
    status = tmp_path / "run" / "status.json"
    seen: list[Any] = []

    class Looks(Hook):
        def before_train(self, run: Run) -> None:
            seen.append(json.loads(status.read_text()))

    fake_training([RuntimeInfoHook(), Looks()], seed=7, work_dir=tmp_path / "run")
    seen.append(json.loads(status.read_text()))

    assert [each["outcome"] for each in seen] == ["running", "finished"]
    for each in seen:
        assert each["about"]["seed"] == 7
        assert each["about"]["versions"]["torch"] == str(torch.__version__)


def test_what_runs_goes_to_every_writer_once() -> None:
    bus = RecordingBus([RuntimeInfoHook()])
    fake_training(bus=bus, seed=7)
    (text,) = bus.arguments("log_text")

    assert text["tag"] == "runtime_info"
    assert "seed: 7" in text["text"].splitlines()
