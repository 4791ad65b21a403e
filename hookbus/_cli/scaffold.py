"""Files of a new package or script with a hook, made from the templates in `templates/`.

A template is a text with `$name` placeholders of `string.Template`. The suffix `.txt` hides templates from tools that
read files of their type.
"""

from __future__ import annotations

import keyword
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Literal

from packaging.utils import is_normalized_name
from packaging.version import Version

import hookbus
from hookbus._utils.packages import BRIDGES_GROUP, HOOKS_GROUP
from hookbus.discovery import list_entries
from hookbus.errors import ConfigError, HookbusError

Variant = Literal["hook", "writer", "bridge"]

DESCRIPTIONS: dict[Variant, str] = {
    "hook": "A hook for hookbus that logs the mean loss.",
    "writer": "A logging backend for hookbus that writes tab-separated values.",
    "bridge": "The hooks of hookbus in another trainer.",
}
VERSION = "0.1.0"
"""Version of a new package."""
PREFIX = "hookbus-"
TEMPLATE_SUFFIX = ".txt"
RENAMED = {"gitignore": ".gitignore", "ci.yml": ".github/workflows/ci.yml"}
"""Files whose names or folders are not those of their templates."""
RESERVED_MODULES = frozenset({"tests", "hookbus"})


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
    def parse(cls, name: str) -> Names:
        """Derive all names from that of the distribution.

        Raises:
            ConfigError: If a name is invalid, or an installed module or hook has it.
        """
        if not is_normalized_name(name):
            raise ConfigError(
                f"hookbus new: the name must consist of lowercase letters, digits and single hyphens, got {name!r}. "
                f"Pass a name such as {_suggest(name)}."
            )
        entry = name.removeprefix(PREFIX).replace("-", "_")
        names = cls(name, name.replace("-", "_"), entry, to_class_name(entry))
        _check_identifiers(names)
        return names


def to_class_name(name: str) -> str:
    """Return a name in snake case in camel case, without a suffix `hook`."""
    parts = [part for part in name.split("_") if part]
    return "".join(part[0].upper() + part[1:] for part in (parts[:-1] if parts[1:] and parts[-1] == "hook" else parts))


def write_package(target: Path, variant: Variant) -> list[Path]:
    """Write a new package into a folder of its name.

    Args:
        target: Folder to create.
        variant: What the package contains.

    Returns:
        Paths of the written files.

    Raises:
        ConfigError: If the name is invalid, or the folder exists.
        HookbusError: If the files cannot be written; nothing remains.
    """
    names = Names.parse(target.name)
    _check_conflicts(names, variant)
    _check_absent(target)
    values = _get_values(names, variant)
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            contents = dict(_iter_files(names, variant))
            for path, template in contents.items():
                _write(temporary / path, template, values)
            temporary.chmod(0o777 & ~_get_umask())  # `mkdtemp` creates a private folder
            temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise _make_error(target, error) from None
    return [target / path for path in sorted(contents)]


def write_script(directory: Path, name: str) -> Path:
    """Write a script with a hook and a small training.

    Args:
        directory: Existing folder.
        name: Name of the module, with or without `.py`.

    Returns:
        Path of the script.

    Raises:
        ConfigError: If the name is invalid, or the file exists.
        HookbusError: If the file cannot be written; nothing remains.
    """
    module = name.removesuffix(".py").replace("-", "_")
    _check_module(module)
    target = directory / f"{module}.py"
    _check_absent(target)
    values = {"module": module, "file": target.name, "cls": _check_class(to_class_name(module))}
    temporary = directory / f".{target.name}-{os.getpid()}"
    try:
        try:
            _write(temporary, _get_templates("script") / f"script.py{TEMPLATE_SUFFIX}", values)
            temporary.rename(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _make_error(target, error) from None
    return target


# -- names -------------------------------------------------------------------------------------


def _check_identifiers(names: Names) -> None:
    _check_module(names.package)
    _check_class(names.cls)


def _check_module(module: str) -> None:
    """Raise if a module cannot have a name, or hides another module with it."""
    if not module.isidentifier() or keyword.iskeyword(module):
        raise ConfigError(f"hookbus new: the name must be a valid Python module, got {module!r}. Pass another name.")
    if module in sys.stdlib_module_names or module in RESERVED_MODULES:
        raise ConfigError(f"hookbus new: a module of this name exists already, got {module!r}. Pass another name.")


def _check_class(name: str) -> str:
    if not name.isidentifier():
        raise ConfigError(
            f"hookbus new: the name must begin with a letter, got {name!r} as a class. Pass another name."
        )
    return name


def _check_conflicts(names: Names, variant: Variant) -> None:
    """Raise if an installed module or hook has the same name."""
    if variant != "bridge" and (entry := next((e for e in list_entries() if e.name == names.entry), None)):
        raise ConfigError(
            f"hookbus new: {entry.package} provides a hook with the name {names.entry!r} already. Pass another name."
        )
    if find_spec(names.package) is not None:
        raise ConfigError(f"hookbus new: a module {names.package!r} is installed already. Pass another name.")


def _suggest(name: str) -> str:
    normalized = re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()).strip("-")
    return repr(normalized if is_normalized_name(normalized) else "hookbus-mine")


# -- files -------------------------------------------------------------------------------------


def _check_absent(target: Path) -> None:
    if os.path.lexists(target):
        raise ConfigError(f"hookbus new: {target} exists already. Remove it, or pass another name.")
    if not target.parent.is_dir():
        raise ConfigError(f"hookbus new: the folder {target.parent} does not exist. Create it first.")


def _get_values(names: Names, variant: Variant) -> dict[str, str]:
    reference = f"{names.package}:{names.cls}Hook"
    is_bridge = variant == "bridge"
    return {
        "distribution": names.distribution,
        "package": names.package,
        "cls": names.cls,
        "version": VERSION,
        "description": DESCRIPTIONS[variant],
        "requirement": get_requirement(hookbus.__version__),
        "group": BRIDGES_GROUP if is_bridge else HOOKS_GROUP,
        "entry": f'"{names.package}.Trainer"' if is_bridge else names.entry,
        "reference": f"{names.package}.capabilities:CAPABILITIES" if is_bridge else reference,
        "year": str(date.today().year),
    }


def get_requirement(version: str) -> str:
    """Return the requirement on a version of hookbus: a minor version may change what hooks use before 1.0."""
    parsed = Version(version)
    after = f"0.{parsed.minor + 1}" if parsed.major == 0 else str(parsed.major + 1)
    return f"hookbus>={parsed.major}.{parsed.minor},<{after}"


def _iter_files(names: Names, variant: Variant) -> Iterator[tuple[Path, Traversable]]:
    """Yield the files of a package with their templates."""
    own = _get_templates(variant)
    for template in (*_get_templates("common").iterdir(), *own.iterdir()):
        if template.is_file():
            name = template.name.removesuffix(TEMPLATE_SUFFIX)
            is_module = name.endswith((".py", ".typed"))
            yield Path(names.package if is_module else ".", RENAMED.get(name, name)), template
    for template in own.joinpath("tests").iterdir():
        yield Path("tests", template.name.removesuffix(TEMPLATE_SUFFIX)), template


def _get_templates(folder: str) -> Traversable:
    return files("hookbus._cli").joinpath("templates", folder)


def _write(path: Path, template: Traversable, values: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(Template(template.read_text(encoding="utf-8")).substitute(values), encoding="utf-8", newline="\n")


def _get_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _make_error(target: Path, error: OSError) -> HookbusError:
    return HookbusError(f"hookbus new: {target} cannot be written: {error.strerror or error}. Pass another folder.")
