"""The parts of the pages that are derived from the code: `python docs/generate.py` writes them, a test compares them.

A page holds them between `<!-- generated: name -->` and `<!-- end -->`. Each hook of each package in `plugins/` is
a part `hook/<entry point>`, each model or data set a part `factory/<entry point>`; they stand on the page of their
package: `docs/plugins/ema.md` for hookbus-ema.
"""

from __future__ import annotations

import functools
import inspect
import json
import pkgutil
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hookbus import errors
from hookbus.cli import app
from hookbus.config import RunConfig
from hookbus.hook import Hook, HookConfig, Priority
from hookbus.lifecycle import ALIASES, POINTS, Point
from hookbus.runfile.sections import DatasetConfig, LoaderConfig, LoadFrom, SchedulerConfig, TrainingConfig
from hookbus.runs.ending import EXIT_CODES

DOCS = Path(__file__).parent
PACKAGES = DOCS.parent / "plugins"
PART = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
UNITS = {"iter": "iterations", "batch": "batches", "step": "updates", "epoch": "epochs"}
CHAPTERS = {
    "before_run": "Around everything",
    "before_train": "Training",
    "before_val": "Validation",
    "after_epoch": "End of training",
    "before_test": "Test",
    "before_save_checkpoint": "Checkpoints",
    "log_scalars": "Records",
    "on_exception": "End of the run",
}
"""The headings of the page of points, by the first point below each."""
OFFERED = ("hookbus.hooks", "hookbus.models", "hookbus.datasets")
"""Groups of entry points whose members have a place on the page of their package."""
SECTIONS: Mapping[str, type[BaseModel]] = {
    "training": TrainingConfig,
    "dataset": DatasetConfig,
    "loader": LoaderConfig,
    "scheduler": SchedulerConfig,
    "load_from": LoadFrom,
}


def pages() -> list[Path]:
    """Every page of the site."""
    return [*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("plugins/*.md"))]


def page_text(text: str) -> str:
    """A page with its generated parts as they should be."""
    return PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]().strip()}\n\n{part[3]}", text)


# -- points ----------------------------------------------------------------------------------------


def points() -> str:
    """Every point: how it is listened at, what it means, what is counted there."""
    parts = []
    for name, point in POINTS.items():
        if name in CHAPTERS:
            parts.append(f"## {CHAPTERS[name]}\n")
        parts.append(_point(point))
    return "\n".join(parts)


def _point(point: Point) -> str:
    arguments = ", ".join(("self", "run", *point.args))
    aliases = [alias for alias, name in ALIASES.items() if name == point.name]
    notes = [point.doc]
    notes += [f"Counted in {UNITS[point.unit]}."] if point.unit else []
    notes += [f"Also spelt `{alias}`." for alias in aliases]
    code = f"```python\ndef {point.name}({arguments}): ...\n```"
    return f"### {point.name}\n\n{code}\n\n{' '.join(notes)}\n"


def priorities() -> str:
    """The named priorities."""
    return _table(("name", "number"), ((f"`{each.name}`", str(int(each))) for each in Priority))


# -- the run file ----------------------------------------------------------------------------------


def run_file() -> str:
    """The keys of a run file, section by section."""
    parts = [_keys(RunConfig)]
    for name, model in SECTIONS.items():
        parts.append(f"### {name}\n\n{inspect.cleandoc(model.__doc__ or '')}\n\n{_keys(model)}")
    return "\n\n".join(parts)


def hook_keys() -> str:
    """The keys that every hook understands."""
    return _keys(HookConfig)


def _keys(model: type[BaseModel], without: Iterable[str] = ()) -> str:
    fields = {name: field for name, field in model.model_fields.items() if name not in without}
    return _table(("key", "meaning"), ((f"`{name}`", _meaning(field)) for name, field in fields.items()))


def _meaning(field: FieldInfo) -> str:
    """What a key means, which values it takes, and which it has by default."""
    notes = [note for note in (_kind(field), _default(field)) if note]
    return f"{field.description}<br><small>{', '.join(notes)}</small>"


def _kind(field: FieldInfo) -> str:
    """The type of a value, in the words of a run file."""
    return " or ".join(dict.fromkeys(_words(field.annotation)))


def _words(annotation: Any) -> list[str]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return [word for each in arguments for word in _words(each) if each is not types.NoneType]
    if origin is typing.Literal:
        return [f"`{each}`" for each in arguments]
    if origin is typing.Annotated:
        return _words(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return ["section"]
    return [WORDS.get(origin or annotation, "text")]


WORDS = {
    Any: "anything",
    bool: "true or false",
    int: "whole number",
    float: "number",
    list: "list",
    tuple: "list",
    dict: "mapping",
}


def _default(field: FieldInfo) -> str:
    if field.default is None:
        return ""
    if field.default is PydanticUndefined:
        return "required"
    if isinstance(field.default, BaseModel):
        shown = field.default.model_dump(exclude_unset=True)
        return f"default `{{{', '.join(f'{key}: {value}' for key, value in shown.items())}}}`" if shown else ""
    return _shown(field.default)


def _shown(default: object) -> str:
    return f"default `{json.dumps(default, default=str).strip(chr(34))}`"


# -- hooks -----------------------------------------------------------------------------------------


def packages() -> str:
    """Every package in `plugins/`: what it offers, and what for."""
    rows = []
    for project in _projects():
        slug, offers = project["name"].removeprefix("hookbus-"), sorted(_offers(project))
        what = project["description"].replace(" for hookbus:", ":")
        rows.append(
            (f"[{slug}](plugins/{slug}.md)", f"{what}<br><small>{', '.join(f'`{each}`' for each in offers)}</small>")
        )
    return _table(("package", "what it brings"), rows)


def hook_facts() -> str:
    """What a hook class states about itself, as its docstring says."""
    documented = _described(Hook, "Attributes")
    stated = [name for name in documented if name in vars(Hook) and not isinstance(vars(Hook)[name], property)]
    rows = ((f"`{name}`", f"{_sentence(documented[name])}<br><small>{_stated(name)}</small>") for name in stated)
    return _table(("attribute", "meaning"), rows)


def _stated(name: str) -> str:
    value = vars(Hook)[name]
    return f"default `{value.__name__ if inspect.isclass(value) else repr(value)}`"


def hook_questions() -> str:
    """The properties of a hook that the bus asks, as their docstrings say."""
    names = ("keeps_best_of", "validates_with")
    return _table(("property", "meaning"), ((f"`{name}`", inspect.getdoc(vars(Hook)[name]) or "") for name in names))


def package_parts() -> Iterator[tuple[str, Callable[[], str]]]:
    """A part for each thing that a package in `plugins/` offers."""
    for project in _projects():
        for name, path in _offers(project).items():
            thing = pkgutil.resolve_name(path)
            if inspect.isclass(thing) and issubclass(thing, Hook):
                yield f"hook/{name}", functools.partial(_hook, name, thing)
            else:
                yield f"factory/{name}", functools.partial(_factory, thing)


def _projects() -> list[dict[str, Any]]:
    return [tomllib.loads(path.read_text())["project"] for path in sorted(PACKAGES.glob("*/pyproject.toml"))]


def _offers(project: Mapping[str, Any]) -> dict[str, str]:
    """What a package offers to people: entry points, without the points of packages."""
    groups: Mapping[str, dict[str, str]] = project.get("entry-points", {})
    return {name: path for group in OFFERED for name, path in groups.get(group, {}).items()}


def _hook(name: str, cls: type[Hook]) -> str:
    """How a hook is named, how deep it is, what happens when it fails, and its settings."""
    facts = [f"`type: {name}` in a run file, `{cls.__module__.partition('.')[0]}.{cls.__name__}` in Python"]
    facts += [f"priority {int(cls.priority)}", "only watches" if cls.observer else "a failure ends the run"]
    facts += ["on the main process only"] if cls.ranks == "main" else []
    facts += ["needs a work directory"] if cls.needs_work_dir else []
    fields, common = cls.Config.model_fields, HookConfig.model_fields
    shared = [key for key in common if fields[key].description == common[key].description]
    table = _keys(cls.Config, shared) if len(shared) < len(fields) else "It has no settings of its own."
    return f"{'; '.join(facts)}.\n\n{table}"


def _factory(function: Callable[..., Any]) -> str:
    """What a model or a data set is made of."""
    meanings = _described(function, "Args")
    rows = []
    for name, parameter in inspect.signature(function).parameters.items():
        default = "required" if parameter.default is parameter.empty else _shown(parameter.default)
        rows.append((f"`{name}`", f"{_sentence(meanings[name])}<br><small>{default}</small>"))
    return f"{(inspect.getdoc(function) or '').partition(chr(10))[0]}\n\n{_table(('key', 'meaning'), rows)}"


def _described(thing: object, section: str) -> dict[str, str]:
    """The entries of a section of a docstring, by name."""
    found = re.search(rf"^{section}:\n(.*?)(?:\n\n|\Z)", inspect.getdoc(thing) or "", re.DOTALL | re.MULTILINE)
    entries = re.split(r"^    (\w+): ", found[1] if found else "", flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)}


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


# -- the command line ------------------------------------------------------------------------------


def commands() -> str:
    """Every command with its arguments and options."""
    group: Any = typer.main.get_command(app)
    return "\n".join(_command(name, command) for name, command in group.commands.items())


def _command(name: str, command: Any) -> str:
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    usage = " ".join(["hookbus", name, *(_usage(each) for each in arguments), *(["[options]"] if options else [])])
    rows = [(f"`{_usage(each)}`", each.help) for each in arguments]
    rows += [(f"`{', '.join(each.opts)}`", each.help) for each in options]
    table = f"\n{_table(('argument', 'meaning'), rows)}\n" if rows else ""
    return f"## hookbus {name}\n\n```text\n{usage}\n```\n\n{command.help}\n{table}"


def _usage(argument: Any) -> str:
    name = argument.name
    return name if argument.required else f"[{name}]"


# -- errors ----------------------------------------------------------------------------------------


def exit_codes() -> str:
    """What a process returns, by outcome of its run."""
    codes = {**EXIT_CODES, "the run file or the command line does not hold": 2}
    rows = sorted((code, outcome) for outcome, code in codes.items())
    return _table(("exit code", "outcome"), ((str(code), outcome) for code, outcome in rows))


def exceptions() -> str:
    """Every exception, below the one that it is a kind of."""
    return _exception(errors.HookbusError, 0)


def _exception(cls: type[Exception], depth: int) -> str:
    line = f"{'    ' * depth}- `{cls.__name__}`: {inspect.cleandoc(cls.__doc__ or '').splitlines()[0]}"
    ours = [each for each in cls.__subclasses__() if each.__module__ == errors.__name__]
    return "\n".join([line, *(_exception(each, depth + 1) for each in ours)])


# -- inside ----------------------------------------------------------------------------------------


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = tuple(heads)
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(each.replace('|', '&#124;') for each in line)} |" for line in lines)


PARTS: Mapping[str, Callable[[], str]] = {
    "commands": commands,
    "exceptions": exceptions,
    "exit-codes": exit_codes,
    "hook-facts": hook_facts,
    "hook-keys": hook_keys,
    "hook-questions": hook_questions,
    "packages": packages,
    "points": points,
    "priorities": priorities,
    "run-file": run_file,
    **dict(package_parts()),
}


def main() -> None:
    """Write the generated parts of every page."""
    for page in pages():
        page.write_text(page_text(page.read_text()))


if __name__ == "__main__":
    main()
