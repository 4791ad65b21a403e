"""Headless Chromium: the elements of a page after it was shown, its messages, and screenshots."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_S = 180
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr",
)  # fmt: skip


def find_browser() -> str | None:
    """Return the path of an installed browser; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def show(page: Path, directory: Path) -> tuple[str, list[str]]:
    """Show a page, and return its elements as HTML and the lines of its console.

    Args:
        page: File to show.
        directory: Directory for the files of the browser.
    """
    done = _run(directory, "--dump-dom", page.as_uri())
    # Errors of scripts, and elements that the policy of the page does not load, are messages of the console.
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def take_screenshot(page: Path, image: Path, directory: Path, width: int, height: int) -> None:
    """Write an image of a page.

    Args:
        page: File to show.
        image: PNG file to write.
        directory: Directory for the files of the browser.
        width: Width of the window in pixels.
        height: Height of the window in pixels.
    """
    _run(directory, f"--screenshot={image}", f"--window-size={width},{height}", page.as_uri())


def _run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(find_browser()), *OPTIONS, f"--user-data-dir={directory}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)


if __name__ == "__main__":  # python -m tests.browser PAGE IMAGE WIDTH HEIGHT
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        take_screenshot(Path(sys.argv[1]).absolute(), Path(sys.argv[2]), Path(temporary), *map(int, sys.argv[3:5]))
