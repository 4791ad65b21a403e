"""MkDocs hook that expands patterns such as `plugins/*.md` in the navigation."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Expand the patterns of the navigation in place."""
    docs = Path(config.docs_dir)
    for section in config.nav:
        for title, entries in section.items():
            if isinstance(entries, list):
                section[title] = [page for entry in entries for page in _pages(docs, entry)]
    return config


def _pages(docs: Path, entry: Any) -> list[Any]:
    if not isinstance(entry, str) or "*" not in entry:
        return [entry]
    return [path.relative_to(docs).as_posix() for path in sorted(docs.glob(entry))]
