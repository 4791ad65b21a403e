"""A report in a browser: sections and curves are shown, without an error, and without a request."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from hookbus_ema import EMAHook
from tests import browser, toys

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.find_browser() is None, reason="no browser is installed: apt-get install chromium"),
]


def test_report_is_shown_completely_on_desktop_and_phone(tmp_path: Path) -> None:
    hooks = [EMAHook(momentum=0.9)]
    toys.trainer(*hooks, val_loader=toys.pairs(), work_dir=tmp_path / "x", epochs=3, config={"a": "<script>"}).fit()
    report = tmp_path / "x" / "report.html"
    elements, messages = browser.show(report, tmp_path / "browser")
    assert messages == []
    sections = ["results", "curves", "time", "memory", "settings", "hooks", "environment"]
    assert re.findall('<section id="([^"]*)">', elements) == sections
    assert re.findall("<title>((?:train|val|lr)[^<]*)</title>", elements) == ["train/loss", "val/loss", "lr"]
    assert elements.count("<polyline") == 3
    for width in (1280, 500):
        image = tmp_path / f"{width}.png"
        browser.take_screenshot(report, image, tmp_path / "browser", width, 900)
        with Image.open(image) as screenshot:
            assert screenshot.size == (width, 900)
            assert len(screenshot.convert("RGB").getcolors(1 << 24) or ()) > 50


def test_request_of_a_page_is_a_message_of_the_browser(tmp_path: Path) -> None:
    toys.trainer(work_dir=tmp_path / "x", epochs=1).fit()
    page = (tmp_path / "x" / "report.html").read_text()
    for element in ('<img src="http://127.0.0.1:9/x.png">', "<script>unknown()</script>"):
        changed = tmp_path / "changed.html"
        changed.write_text(page.replace("<header>", f"{element}<header>"))
        assert browser.show(changed, tmp_path / "browser")[1] != []
