"""YAML 1.2 as plain data that remembers where everything stands in the file.

Only plain values: tags are refused, aliases may not blow up, and what is wrong is collected, not raised one by one.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.representer import SafeRepresenter

__all__ = ["Document", "Path", "Place", "dump", "parse_value", "read", "unwritable"]

Path = tuple[str | int, ...]
Place = tuple[int, int] | str
"""Line and column from 1, or the text of the override that put something there."""

MAX_NODES = 20_000
MAX_DEPTH = 60
STANDARD = "tag:yaml.org,2002:"
PLAIN_TAGS = {STANDARD + name for name in ("str", "int", "float", "bool", "null", "seq", "map", "timestamp")}


@dataclass
class Document:
    """Data with places.

    Attributes:
        name: of the file, for messages.
        data: mappings, lists and plain values.
        keys: by path, where the key stands.
        values: by path, where the value stands.
        problems: what is wrong with the file itself, complete sentences with their places.
        refused: the paths of values that could not be read; they are None in `data`.
    """

    name: str
    data: Any = None
    keys: dict[Path, Place] = field(default_factory=dict)
    values: dict[Path, Place] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    refused: set[Path] = field(default_factory=set)

    def problem(self, path: Path, message: str, *, at_key: bool = False) -> str:
        """A complete sentence about a place: `run.yaml:3:5: hooks.ema.decya: unknown key. ...`."""
        return self.problem_at(self._place(path, self.keys if at_key else self.values), message, path)

    def problem_at(self, place: Place | None, message: str, path: Path = ()) -> str:
        """The same for a place that is known; None for data that stands in no file."""
        where = self.name
        if place is not None:
            where = f"command line: {place}" if isinstance(place, str) else f"{self.name}:{place[0]}:{place[1]}"
        dotted = ".".join(map(str, path))
        return f"{where}: {f'{dotted}: ' if dotted else ''}{message}"

    def is_refused(self, path: Path) -> bool:
        """Whether what stands at a place, or in it, could not be read: that was told, and explains what is wrong."""
        return any(each[: len(path)] == path for each in self.refused)

    def _place(self, path: Path, places: dict[Path, Place]) -> Place | None:
        """Of the nearest thing above where it is not there itself."""
        for end in range(len(path), -1, -1):
            found = places.get(path[:end]) or self.values.get(path[:end])
            if found is not None:
                return found
        return None


def read(text: str, name: str) -> Document:
    """Read YAML. What is wrong is in `problems`; `data` holds what could be read.

    Args:
        text: the YAML.
        name: of the file, for messages.
    """
    document = Document(name)
    try:
        node = YAML(typ="safe", pure=True).compose(text)
        if node is None:
            document.problems.append(document.problem_at((1, 1), "the file is empty."))
        else:
            document.data = _Reader(document).value(node, (), 0)
    except _Refused as refused:
        document.problems.append(document.problem_at(refused.place, str(refused)))
    except RecursionError:
        document.problems.append(document.problem_at((1, 1), f"nested deeper than {MAX_DEPTH} levels."))
    except YAMLError as error:
        place, reason = _described(error, text)
        document.problems.append(document.problem_at(place, f"this is not YAML: {reason}."))
    return document


def parse_value(text: str) -> Any:
    """One value as YAML reads it: `1e-3` is a number, `on` a word, `[1, 2]` a list, nothing is null.

    Raises:
        ValueError: it is not YAML.
    """
    if not text.strip():
        return None
    if text.lstrip().startswith("#"):
        raise ValueError(f"{text!r} is a comment in YAML; put it in quotes.")
    document = read(text, "value")
    if document.problems:
        raise ValueError(document.problems[0].partition(": ")[2])
    return document.data


def unwritable(text: str) -> str:
    """What is wrong with a text that no file and no file name can hold; "" if it is fine."""
    odd = next((each for each in text if each == "\0" or "\ud800" <= each <= "\udfff"), None)
    return "" if odd is None else f"the character U+{ord(odd):04X} cannot stand here: no file name has it."


def dump(data: Any) -> str:
    """Plain data as YAML that `read` gives back as it was; mappings keep their order."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.allow_unicode = True
    yaml.width = 1_000_000
    stream = io.StringIO()
    yaml.dump(data, stream)
    return stream.getvalue()


class _Representer(SafeRepresenter):
    """Writes a text with line breaks or invisible characters in double quotes: only there are all of them escaped."""

    def represent_str(self, data: str) -> ScalarNode:
        style = None if data.isprintable() else '"'
        return self.represent_scalar(STANDARD + "str", data, style=style)


_Representer.add_representer(str, _Representer.represent_str)


class _Refused(Exception):
    """The whole file is refused."""

    def __init__(self, node: Node, message: str) -> None:
        super().__init__(message)
        self.place = _place(node)


class _Reader:
    """Turns nodes into data and writes down their places."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._left = MAX_NODES
        self._inside: set[int] = set()
        self._constructor = YAML(typ="safe", pure=True).constructor

    def value(self, node: Node, path: Path, depth: int) -> Any:
        self._document.values[path] = _place(node)
        self._count(node)
        if node.tag not in PLAIN_TAGS:
            return self._refuse(path, f"the tag {_short(node.tag)} is refused: a run file is plain data.")
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._inside:
            return self._refuse(path, "the alias stands inside what it refers to.")
        with self._entered(node, depth):
            if isinstance(node, SequenceNode):
                return [self.value(each, (*path, i), depth + 1) for i, each in enumerate(node.value)]
            result: dict[str, Any] = {}
            self._fill(result, node, path, depth)
            return result

    def _fill(self, result: dict[str, Any], node: Node, path: Path, depth: int) -> None:
        """Add the pairs of a mapping; what an earlier one gave stays. What it merges in by `<<` comes last."""
        own: dict[str, Node] = {}
        merged: list[Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == STANDARD + "merge":
                merged += value_node.value if isinstance(value_node, SequenceNode) else [value_node]
            elif not isinstance(key_node, ScalarNode):
                self._wrong(_place(key_node), path, "a key is a word, not a list or a mapping.")
            elif odd := unwritable(key_node.value):
                self._wrong(_place(key_node), path, odd)
            elif key_node.value in own:
                first = _place(own[key_node.value])[0]
                again = f"this key stands here a second time; the first is in line {first}."
                self._wrong(_place(key_node), (*path, key_node.value), again)
            else:
                own[key_node.value] = key_node
                self._add(result, key_node, value_node, path, depth)
        for each in merged:
            self._merge(result, each, path, depth)

    def _add(self, result: dict[str, Any], key_node: Node, value_node: Node, path: Path, depth: int) -> None:
        if key_node.value not in result:
            here = (*path, key_node.value)
            self._document.keys[here] = _place(key_node)
            result[key_node.value] = self.value(value_node, here, depth + 1)

    def _merge(self, result: dict[str, Any], node: Node, path: Path, depth: int) -> None:
        self._count(node)
        if id(node) in self._inside:
            self._wrong(_place(node), path, "the alias stands inside what it refers to.")
        elif not isinstance(node, MappingNode):
            self._wrong(_place(node), path, "<< merges mappings, and this is none.")
        else:
            with self._entered(node, depth):
                self._fill(result, node, path, depth + 1)

    def _scalar(self, node: ScalarNode, path: Path) -> Any:
        if str(node.tag) == STANDARD + "timestamp":
            return node.value
        if odd := unwritable(node.value):
            return self._refuse(path, odd)
        try:
            return self._constructor.construct_object(node)
        except (ValueError, KeyError, YAMLError):
            return self._refuse(path, f"{node.value[:40]!r} cannot be read as {_short(node.tag)}.")

    @contextmanager
    def _entered(self, node: Node, depth: int) -> Iterator[None]:
        if depth >= MAX_DEPTH:
            raise _Refused(node, f"nested deeper than {MAX_DEPTH} levels.")
        self._inside.add(id(node))
        yield
        self._inside.discard(id(node))

    def _count(self, node: Node) -> None:
        self._left -= 1
        if self._left < 0:
            raise _Refused(node, f"more than {MAX_NODES} values in one file; an alias counts each time it is used.")

    def _refuse(self, path: Path, message: str) -> None:
        """A value that cannot be had: reported here, so that nobody needs to say that it is missing."""
        self._document.refused.add(path)
        self._document.problems.append(self._document.problem(path, message))

    def _wrong(self, place: Place, path: Path, message: str) -> None:
        self._document.problems.append(self._document.problem_at(place, message, path))


def _place(node: Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _short(tag: object) -> str:
    return str(tag).replace(STANDARD, "!!")


def _described(error: YAMLError, text: str) -> tuple[Place, str]:
    """Where a YAML error is, and what it says."""
    if isinstance(error, ReaderError):
        before = text[: error.position]
        place = before.count("\n") + 1, len(before) - before.rfind("\n")
        return place, f"the character U+{ord(text[error.position]):04X} is not allowed"
    if not isinstance(error, MarkedYAMLError):
        return (1, 1), str(error).strip()
    mark = error.problem_mark or error.context_mark
    place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    lines = text.split("\n")
    if mark and mark.line < len(lines) and lines[mark.line][: mark.column + 1].endswith("\t"):
        return place, "a tab stands here, where only spaces may indent and separate"
    problem = str(error.problem or error.context).strip()
    return place, f"{error.context}, {problem}" if problem.startswith("but ") else problem
