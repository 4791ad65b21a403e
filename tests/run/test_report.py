"""`report.html`: sections, outcomes, redaction, and files that cannot be written."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus, Run
from hookbus.errors import ConfigError
from tests import toys

REPORT = "report.html"


class Failing(Hook):
    """Raise in an iteration, with a message that is HTML."""

    def before_train_iter(self, run: Run) -> None:
        if run.iters_done == 4:
            raise RuntimeError("<img src=x> failed with token hunter2hunter2")


class Observer(Hook):
    observer = True

    def after_train_iter(self) -> None:
        raise ValueError("observed <b>")


def train(directory: Path, *hooks: Hook, **options: Any) -> str:
    trainer = toys.trainer(*hooks, val_loader=toys.pairs(), work_dir=directory, epochs=2, **options)
    with suppress(RuntimeError):
        trainer.fit()
    return (directory / REPORT).read_text()


def get_texts(page: str, section: str) -> list[str]:
    """Return the texts of the cells and items of a section."""
    (content,) = re.findall(rf'<section id="{section}">(.*?)</section>', page, re.DOTALL)
    return re.findall(r"<(?:td|li)[^>]*>([^<]*)</", content)


def test_report_of_a_finished_run_has_all_sections(tmp_path: Path) -> None:
    config = {"lr": 0.1, "api_key": "hunter2hunter2", "model": {"note": "<script>"}}
    page = train(tmp_path / "x", config=config)
    names = ["results", "curves", "time", "memory", "settings", "environment"]
    assert re.findall('<section id="([^"]*)">', page) == names
    assert '<span class="state finished">finished</span>' in page
    assert "2 epochs · 6 iterations · 6 steps" in page
    assert re.findall('aria-label="([^"]*)"', page) == ["loss", "learning rate"]
    assert get_texts(page, "settings")[:6] == ["lr", "0.1", "api_key", "***", "model.note", "&lt;script&gt;"]
    assert get_texts(page, "results")[0] == "val/loss"
    assert "parameters" in get_texts(page, "memory")
    assert {"training", "validation", "total"} <= set(get_texts(page, "time"))
    assert "hunter2" not in page
    assert not re.search("<script|<img", page)


def test_report_of_a_failed_run_shows_the_error_and_the_warnings(tmp_path: Path) -> None:
    with pytest.warns(match="observed"):
        page = train(tmp_path / "x", Failing(), Observer(), config={"password": "hunter2hunter2"})
    assert '<span class="state failed">failed</span>' in page
    assert '<div class="error">RuntimeError: &lt;img src=x&gt; failed with token ***' in page
    assert any(
        "failed 3 times. First failure: ValueError: observed &lt;b&gt;" in t for t in get_texts(page, "warnings")
    )
    assert get_texts(page, "hooks")[:2] == ["failing", "Failing"]


def test_report_of_a_stopped_run_shows_the_reasons(tmp_path: Path) -> None:
    class Stop(Hook):
        def after_epoch(self, run: Run) -> None:
            run.request_stop("enough <of> it")

    page = train(tmp_path / "x", Stop())
    assert '<span class="state stopped">' in page
    assert "stop: enough &lt;of&gt; it</p>" in page


def test_custom_loop_has_a_report_and_an_evaluation_has_none(tmp_path: Path) -> None:
    bus = HookBus()
    with bus.run(iterations=1, work_dir=tmp_path / "x"):
        bus.emit("after_train_iter", outputs={"loss": torch.tensor(1.0)})
    before = (tmp_path / "x" / REPORT).read_bytes()
    assert b"loss" in before
    with bus.run(mode="val", work_dir=tmp_path / "x", validate=lambda: {"a": 1.0}, resume="never", fresh=True) as run:
        run.validate()
    assert (tmp_path / "x" / REPORT).read_bytes() == before


def test_no_report_is_written_if_it_is_switched_off(tmp_path: Path) -> None:
    toys.trainer(work_dir=tmp_path / "x", epochs=1, report=False).fit()
    with HookBus().run(iterations=0, work_dir=tmp_path / "y", report=False):
        pass
    assert not [*tmp_path.rglob(REPORT)]
    with pytest.raises(ConfigError, match="report"):
        toys.trainer(report="no")


def test_file_of_the_user_is_not_replaced_and_one_of_the_run_is(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / REPORT).write_text("mine")
    toys.trainer(work_dir=tmp_path, epochs=1).fit()
    assert (tmp_path / REPORT).read_text() == "mine"
    assert f"{tmp_path / REPORT} was not written by a run" in caplog.text
    trainer = toys.trainer(work_dir=tmp_path / "x", epochs=1)
    trainer.fit()
    trainer.fit(epochs=2)
    assert "2 epochs" in (tmp_path / "x" / REPORT).read_text()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyError("strange")])
def test_report_that_cannot_be_written_does_not_fail_the_run(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("hookbus._run.report.build_page", fail)
    run = toys.trainer(work_dir=tmp_path / "x", epochs=1).fit()
    assert run.outcome == "finished"
    assert f"{tmp_path / 'x' / REPORT} cannot be written: " in caplog.text
