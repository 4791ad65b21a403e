"""Mapping of the generated parts to the functions that generate them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generating.bridges import bridge_packages, capabilities, differences, hooks_in_trainers, refusals
from docs.generating.commands import commands
from docs.generating.common_keys import refused_keys
from docs.generating.deprecations import deprecations
from docs.generating.errors import exceptions, exit_codes
from docs.generating.hooks import hook_facts, hook_questions
from docs.generating.packages import extras, package_parts, packages
from docs.generating.points import points, priorities
from docs.generating.samples import sample
from docs.generating.services import services
from docs.generating.settings import hook_keys, run_file
from docs.generating.versions import torch_features

__all__ = ["PARTS", "page_text", "pages"]

DOCS = Path(__file__).parents[1]
PART = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
PARTS: Mapping[str, Callable[[], str]] = {
    "bridges": bridge_packages,
    "capabilities": capabilities,
    "commands": commands,
    "deprecations": deprecations,
    "differences": differences,
    "exceptions": exceptions,
    "exit-codes": exit_codes,
    "extras": extras,
    "hook-facts": hook_facts,
    "hook-keys": hook_keys,
    "hook-questions": hook_questions,
    "hooks-in-trainers": hooks_in_trainers,
    "packages": packages,
    "points": points,
    "priorities": priorities,
    "refusals": refusals,
    "refused-keys": refused_keys,
    "run-file": run_file,
    "sample": sample,
    "services": services,
    "torch-features": torch_features,
    **dict(package_parts()),
}


def pages() -> list[Path]:
    """Return the paths of all pages."""
    return [page for pattern in ("*.md", "plugins/*.md", "recipes/*.md") for page in sorted(DOCS.glob(pattern))]


def page_text(text: str) -> str:
    """Return the text of a page with up-to-date generated parts."""
    return PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]().strip()}\n\n{part[3]}", text)
