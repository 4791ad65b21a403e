"""Data of a run file with the location of every value, and messages that contain these locations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hookbus._utils.redaction import redact
from hookbus._utils.secrets import REDACTED, is_secret
from hookbus._utils.values import escape_control_characters, shorten
from hookbus.errors import format_path

Path = tuple[str | int, ...]

MAX_PATH_LENGTH = 300
"""Maximum number of characters of a path in a message."""


@dataclass(frozen=True)
class Origin:
    """Place of a value that neither the run file nor the command line sets.

    Attributes:
        name: Environment variable, file, or file with line and column.
        table: Table of the file, if its values have no lines.
    """

    name: str
    table: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.table}".rstrip()


Location = tuple[int, int] | str | Origin
"""Line and column, both starting at 1, or the text of the override that set the value, or its origin elsewhere."""


@dataclass(frozen=True)
class Reference:
    """A value that refers to environment variables.

    Attributes:
        template: Text in the run file: `https://${env:HOST}/x`.
        text: Text with the values of the variables.
        names: Names of the variables.
    """

    template: str
    text: str
    names: tuple[str, ...]


@dataclass
class Document:
    """Parsed data with locations.

    Attributes:
        name: Name of the file, for messages.
        data: Mappings, lists and scalars.
        key_locations: Locations of keys by path.
        value_locations: Locations of values by path.
        problems: Messages about the file itself, with locations.
        references: References to environment variables by path.
        replaced: Values that were replaced by those of another layer, by path, latest first.
        invalid_paths: Paths of values that could not be parsed, and of their parents. These values are None in `data`.
    """

    name: str
    data: Any = None
    key_locations: dict[Path, Location] = field(default_factory=dict)
    value_locations: dict[Path, Location] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    invalid_paths: set[Path] = field(default_factory=set)
    references: dict[Path, Reference] = field(default_factory=dict)
    replaced: dict[Path, list[tuple[Location | None, Any]]] = field(default_factory=dict)

    def add_problem(self, path: Path, message: str, *, at_key: bool = False) -> None:
        """Add a message about a value, see `format_problem`."""
        self.problems.append(self.format_problem(path, message, at_key=at_key))

    def reject(self, path: Path, message: str) -> None:
        """Add a message about a value that cannot be parsed. Validation reports neither it nor its parents."""
        self.mark_invalid(path)
        self.add_problem(path, message)

    def format_problem(self, path: Path, message: str, *, at_key: bool = False) -> str:
        """Return a message with the location of a path: `run.yaml:3:5: hooks.ema.decya: unknown key. ...`."""
        location = self._get_location(path, self.key_locations if at_key else self.value_locations)
        if path in self.references and not at_key:
            variables = shorten(", ".join(shorten(name) for name in self.references[path].names))
            if variables != str(location):
                message = f"{message} The value refers to the environment: {variables}."
        return self.format_problem_at(location, message, path)

    def format_problem_at(self, location: Location | None, message: str, path: Path = ()) -> str:
        """Return a message with a location."""
        dotted = escape_control_characters(".".join(shorten(str(key)) for key in path))
        table = f"{location.table} " if isinstance(location, Origin) and location.table else ""
        place = f"{shorten(dotted, MAX_PATH_LENGTH)}: " if dotted else ""
        text = f"{self._format_location(location)}: {table}{place}{message}"
        # A message may have several lines, but no other character that a terminal interprets.
        return escape_control_characters(text, keep="\n")

    def format_source(self, path: Path) -> str:
        """Return where a value is set, without the value: `in run.yaml:3:5`, or `on the command line`."""
        location = self.find_location(path)
        return "on the command line" if isinstance(location, str) else f"in {self.format_location(location)}"

    def format_location(self, location: Location | None) -> str:
        """Return a location without a value: `run.yaml:3:5`, `command line`, or `pyproject.toml [tool.hookbus]`."""
        if isinstance(location, Origin):
            return escape_control_characters(str(location))
        return "command line" if isinstance(location, str) else self._format_location(location)

    def find_location(self, path: Path) -> Location | None:
        """Return the location of a value, or of its closest parent with a location."""
        return self._get_location(path, self.value_locations)

    def _format_location(self, location: Location | None) -> str:
        if isinstance(location, str):
            return f"command line: {escape_control_characters(shorten(_hide_secrets(location)))}"
        if isinstance(location, Origin):
            return location.name
        return self.label if location is None else f"{self.label}:{location[0]}:{location[1]}"

    @property
    def label(self) -> str:
        """Name of the file in messages."""
        return shorten(format_path(self.name), MAX_PATH_LENGTH)

    def hide_override(self, path: Path) -> None:
        """Hide the value of an override, which is a secret, in the locations of messages."""
        for end in range(len(path), 0, -1):
            for locations in (self.key_locations, self.value_locations):
                location = locations.get(path[:end])
                if isinstance(location, str):
                    locations[path[:end]] = f"{location.partition('=')[0]}={REDACTED}"

    def mark_invalid(self, path: Path) -> None:
        """Mark a value that could not be parsed, so that validation reports neither it nor its parents."""
        self.invalid_paths.update(path[:end] for end in range(len(path) + 1))

    def get_position(self, path: Path) -> tuple[bool, int, int]:
        """Return the sort key of a path: its location in the file; paths without one come last."""
        location = self.find_location(path)
        return (False, *location) if isinstance(location, tuple) else (True, 0, 0)

    def _get_location(self, path: Path, locations: dict[Path, Location]) -> Location | None:
        """Return the location of a path, or of its closest parent with a location."""
        for end in range(len(path), -1, -1):
            location = locations.get(path[:end]) or self.value_locations.get(path[:end])
            if location is not None:
                return location
        return None


def iter_paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of a value, and the paths of all values in it."""
    yield path
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from iter_paths(item, (*path, key))


def _hide_secrets(override: str) -> str:
    """Return the text of an override without secrets."""
    dotted, equals, value = override.partition("=")
    name = next((key for key in dotted.split(".") if is_secret(key)), "")
    return f"{dotted}{equals}{redact(value, name)}"
