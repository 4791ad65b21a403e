"""Names of a new package or script: derived from one name, and refused if another module or hook has one of them."""

from __future__ import annotations

import keyword
import re
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from packaging.utils import is_normalized_name

from hookbus.discovery import list_entries
from hookbus.errors import ConfigError

Variant = Literal["hook", "writer", "bridge"]

PREFIX = "hookbus-"
FALLBACKS = ("hookbus-mine", "hookbus-my-hook", "hookbus-my-first-hook")
"""Names that are suggested if the name that was passed cannot be a part of one."""

RESERVED_MODULES = frozenset({"hookbus", "torch", "pytest"} | {"conftest", "test", "tests", "setup", "sitecustomize"})
"""Modules that are imported by their name, installed or not, in addition to those of the standard library."""


@dataclass(frozen=True)
class Names:
    """Names of a new package.

    Attributes:
        distribution: Name on the package index, such as `hookbus-grad-noise`.
        package: Name of the module, such as `hookbus_grad_noise`.
        entry: Name in run files, such as `grad_noise`.
        cls: First part of the class names, such as `GradNoise`.
    """

    distribution: str
    package: str
    entry: str
    cls: str

    @classmethod
    def parse(cls, name: str, variant: Variant) -> Names:
        """Derive all names from that of the distribution.

        Args:
            name: Name of the distribution.
            variant: What the package contains.

        Raises:
            ConfigError: If a name is invalid, or an installed module or hook has it.
        """
        if problem := _find_problem(name, variant):
            base = _to_ascii_words(name)
            stem = "" if base == "hookbus" else base.removeprefix(PREFIX)
            candidates = (base, f"{PREFIX}{stem}", f"{PREFIX}my-{stem}") if stem else ()
            raise _make_error(problem, (*candidates, *FALLBACKS), lambda candidate: _find_problem(candidate, variant))
        return cls.derive(name)

    @classmethod
    def derive(cls, name: str) -> Names:
        """Derive all names from that of the distribution, without checks."""
        entry = name.removeprefix(PREFIX).replace("-", "_")
        return cls(name, name.replace("-", "_"), entry, to_class_name(entry))


def _to_ascii_words(name: str) -> str:
    """Return a name as lowercase ASCII words, separated by hyphens; letters lose their accents."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).casefold()
    letters = (letter for letter in unicodedata.normalize("NFKD", words) if not unicodedata.combining(letter))
    return re.sub(r"[^a-z0-9]+", "-", "".join(letters)).strip("-")


def parse_module(name: str) -> str:
    """Return the name of the module of a new script.

    Args:
        name: Name of the module, with or without `.py`; hyphens become underscores.

    Raises:
        ConfigError: If it is invalid, or another module has it.
    """
    module = name.removesuffix(".py").replace("-", "_")
    if problem := _find_script_problem(module):
        raise _make_error(problem, (f"my_{module}", "my_hook", "my_first_hook"), _find_script_problem)
    return module


def to_class_name(name: str) -> str:
    """Return a name in snake case in camel case, without a suffix `hook`."""
    parts = [part for part in name.split("_") if part]
    return "".join(part[0].upper() + part[1:] for part in (parts[:-1] if parts[1:] and parts[-1] == "hook" else parts))


def _make_error(problem: str, candidates: tuple[str, ...], find_problem: Callable[[str], str]) -> ConfigError:
    """Return the error of a name, with the first candidate that would be accepted."""
    valid = next((candidate for candidate in candidates if not find_problem(candidate)), None)
    return ConfigError(
        f"hookbus new: {problem}. Pass {'another name' if valid is None else f'a name such as {valid}'}."
    )


def _find_problem(name: str, variant: Variant) -> str:
    """Return why a distribution cannot have a name; "" if it can."""
    if not is_normalized_name(name):
        return f"the name must consist of lowercase letters, digits and single hyphens, got {name!r}"
    names = Names.derive(name)
    if problem := _find_module_problem(names.package) or _find_class_problem(names.cls):
        return problem
    entry = next((entry for entry in list_entries() if entry.name == names.entry), None)
    if entry is not None and variant != "bridge":
        return f"{entry.package} provides a hook with the name {names.entry!r} already"
    return ""


def _find_script_problem(module: str) -> str:
    return _find_module_problem(module) or _find_class_problem(to_class_name(module))


def _find_module_problem(module: str) -> str:
    """Return why a module cannot have a name, or hides another module with it; "" if it can have it."""
    if not module.isidentifier() or keyword.iskeyword(module):
        return f"the name must be a valid Python module, got {module!r}"
    if module in sys.stdlib_module_names or module in RESERVED_MODULES:
        return f"a module of this name would hide another one, got {module!r}"
    return f"a module {module!r} is installed already" if find_spec(module) is not None else ""


def _find_class_problem(name: str) -> str:
    return "" if name.isidentifier() else f"the name must begin with a letter, got {name!r} as a class"
