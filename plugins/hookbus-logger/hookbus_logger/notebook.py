"""The display of a run in the output of a notebook cell, which is updated in place."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from typing import Any

from hookbus import Run
from hookbus_logger.epoch_table import Row
from hookbus_logger.notebook_page import Bar, NotebookPage

MIN_SECONDS = 0.2
"""Minimum time between two updates by rows, so that short epochs slow neither the training nor the browser down."""


def is_notebook() -> bool:
    """Return whether the process is the kernel of a notebook. Nothing is imported."""
    module = sys.modules.get("IPython")
    get_shell = getattr(module, "get_ipython", None)
    return get_shell is not None and hasattr(get_shell(), "kernel")


def get_notebook(run: Run) -> NotebookDisplay | None:
    """Return the service `notebook` of a run, created and registered on the first call; None outside of notebooks."""
    display = run.get("notebook")
    if display is None and is_notebook():
        display = NotebookDisplay()
        run.provide("notebook", display)
    return display  # type: ignore[no-any-return]


class NotebookDisplay:
    """One output of a notebook cell, shared by the hooks of a run.

    Attributes:
        page: Content.
    """

    def __init__(self) -> None:
        self.page = NotebookPage()
        self._handle: Any = None
        # The thread of the progress changes and displays the content as well.
        self._lock = threading.Lock()
        self._next_update = 0.0

    def open(self, title: str = "") -> None:
        """Display the first line.

        Args:
            title: Text of the line. Default: "", for an empty display to which text output of the cell is added below.
        """
        with self._lock:
            self.page.title = title
            self._update()

    def print_row(self, row: Row) -> None:
        """Add a row to the table. It is displayed at once, unless the last update is less than 0.2 seconds ago."""
        with self._lock:
            self.page.add_row(row)
            if time.monotonic() >= self._next_update:
                self._update()

    def show_progress(self, bar: Bar) -> None:
        """Display the progress of the run."""
        with self._lock:
            self.page.progress = bar
            self._update()

    def end_progress(self, bar: Bar) -> None:
        """Remove the progress and display the final content.

        Args:
            bar: Last progress, which remains if the display contains nothing else.
        """
        with self._lock:
            self.page.progress = bar if self.page.is_empty else None
            self._update()

    def close(self, *closing: str) -> None:
        """Display the final content.

        Args:
            closing: Texts of the lines below the table.
        """
        with self._lock:
            self.page.closing = closing
            self._update()

    def _update(self) -> None:
        self._next_update = time.monotonic() + MIN_SECONDS
        content = {"text/html": self.page.to_html(), "text/plain": self.page.to_text()}
        if self._handle is None:
            self._handle = importlib.import_module("IPython.display").DisplayHandle()
            self._handle.display(content, raw=True)
        else:
            self._handle.update(content, raw=True)
