"""Files of a new package or script with a hook, made from the templates in `templates/`.

A template is a text with `$name` placeholders of `string.Template`. The suffix `.txt` hides templates from tools that
read files of their type.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import date
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from packaging.version import Version

import hookbus
from hookbus._cli.package_names import Names, Variant, parse_module, to_class_name
from hookbus._utils.packages import BRIDGES_GROUP, HOOKS_GROUP
from hookbus.errors import ConfigError, HookbusError

DESCRIPTIONS: dict[Variant, str] = {
    "hook": "A hook for hookbus that logs the mean loss.",
    "writer": "A logging backend for hookbus that writes tab-separated values.",
    "bridge": "The hooks of hookbus in another trainer.",
}
VERSION = "0.1.0"
"""Version of a new package."""
TEMPLATE_SUFFIX = ".txt"
RENAMED = {"gitignore": ".gitignore", "ci.yml": ".github/workflows/ci.yml"}
"""Files whose names or folders are not those of their templates."""


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
    names = Names.parse(target.name, variant)
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
    _check_absent(directory / f"{name.removesuffix('.py').replace('-', '_')}.py")  # before its module is found
    module = parse_module(name)
    target = directory / f"{module}.py"
    values = {"module": module, "file": target.name, "cls": to_class_name(module)}
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
