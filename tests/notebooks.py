"""Execution of notebooks in a kernel. `python -m tests.notebooks` writes the outputs of the example notebook."""

from __future__ import annotations

import importlib
import os
import tempfile
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parent.parent / "docs" / "examples" / "notebook.ipynb"


def execute(notebook: Any, directory: Path) -> Any:
    """Execute the cells of a notebook in place, in a new kernel; errors are outputs of their cells.

    Args:
        notebook: Notebook of nbformat.
        directory: Working directory of the kernel.
    """
    from nbclient import NotebookClient

    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # a warning of the debugger in the output
    # Outputs that arrive later than `iopub_timeout` seconds after the reply of the kernel would be lost.
    options: dict[str, Any] = {"timeout": 240, "iopub_timeout": 60, "kernel_name": "python3"}
    options |= {"allow_errors": True, "record_timing": False}
    NotebookClient(notebook, resources={"metadata": {"path": str(directory)}}, **options).execute()
    return notebook


def write_example() -> None:
    """Execute the example notebook and write it with its outputs."""
    nbformat: Any = importlib.import_module("nbformat")  # its functions have no types
    notebook = nbformat.read(EXAMPLE, as_version=4)
    with tempfile.TemporaryDirectory() as directory:
        execute(notebook, Path(directory))
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(notebook, EXAMPLE)


if __name__ == "__main__":
    write_example()
