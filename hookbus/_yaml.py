"""YAML 1.2 as plain data that remembers where everything stands in the file.

Only plain values: tags are refused, aliases may not blow up, and what is wrong is collected, not raised one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

__all__ = ["Document", "Path", "parse_value", "read"]

Path = tuple[str | int, ...]

MAX_NODES = 100_000
MAX_DEPTH = 60
PLAIN_TAGS = {
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map", "timestamp")
}


@dataclass
class Document:
    """Data with places.

    Attributes:
        name: of the file, for messages.
        data: mappings, lists and plain values.
        keys: by path, line and column of the key (from 1), or the text of the override that put it there.
        values: the same for the value.
        problems: what is wrong with the file itself, complete sentences with their places.
    """

    name: str
    data: Any = None
    keys: dict[Path, tuple[int, int] | str] = field(default_factory=dict)
    values: dict[Path, tuple[int, int] | str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def problem(self, path: Path, message: str, *, at_key: bool = False) -> str:
        """A complete sentence about a place: `run.yaml:3:5: hooks.ema.decya: unknown key. ...`."""
        dotted = ".".join(map(str, path))
        return f"{self.place(path, at_key=at_key)}: {f'{dotted}: ' if dotted else ''}{message}"

    def place(self, path: Path, *, at_key: bool = False) -> str:
        """`file:line:column`, or `command line: <override>`; of the nearest thing above where it is not there."""
        places = self.keys if at_key else self.values
        at: tuple[int, int] | str | None = None
        for end in range(len(path), -1, -1):
            at = places.get(path[:end]) or self.values.get(path[:end])
            if at is not None:
                break
        if isinstance(at, str):
            return f"command line: {at}"
        line, column = at or (1, 1)
        return f"{self.name}:{line}:{column}"


def read(text: str, name: str) -> Document:
    """Read YAML. What is wrong is in `problems`; `data` holds what could be read.

    Args:
        text: the YAML.
        name: of the file, for messages.
    """
    document = Document(name)
    try:
        node = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
        document.problems.append(f"{name}:{at}: this is not YAML: {_reason(error, text, mark)}.")
        return document
    except (YAMLError, RecursionError, ValueError) as error:
        document.problems.append(f"{name}:1:1: this is not YAML: {str(error).strip() or type(error).__name__}.")
        return document
    if node is None:
        document.problems.append(f"{name}:1:1: the file is empty.")
        return document
    document.data = _Reader(document).value(node, (), 0)
    return document


def parse_value(text: str) -> Any:
    """One value as YAML reads it: `1e-3` is a number, `on` a word, `[1, 2]` a list.

    Raises:
        ValueError: it is not YAML.
    """
    document = read(text, "value")
    if document.problems and text.strip():
        raise ValueError(document.problems[0].partition(": ")[2])
    return document.data


class _Reader:
    """Turns nodes into data and writes down their places."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._left = MAX_NODES
        self._inside: set[int] = set()
        self._constructor = YAML(typ="safe", pure=True).constructor

    def value(self, node: Node, path: Path, depth: int) -> Any:
        self._document.values[path] = _place(node)
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH or id(node) in self._inside:
            return self._refuse_size(node, path, depth)
        if node.tag not in PLAIN_TAGS:
            self._wrong(path, f"the tag {node.tag!r} is refused: a run file is plain data.")
            return None
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        self._inside.add(id(node))
        try:
            if isinstance(node, SequenceNode):
                return [self.value(each, (*path, i), depth + 1) for i, each in enumerate(node.value)]
            assert isinstance(node, MappingNode)
            return self._mapping(node, path, depth)
        finally:
            self._inside.discard(id(node))

    def _mapping(self, node: MappingNode, path: Path, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node) if isinstance(key_node, ScalarNode) else None
            if key == "<<":
                self._merge(merged, self.value(value_node, (*path, "<<"), depth + 1))
                continue
            key = str(key)
            here = (*path, key)
            if key in result:
                first = self._document.keys[here]
                line = f"line {first[0]}" if isinstance(first, tuple) else first
                self._document.values[here] = _place(key_node)
                self._wrong(here, f"this key stands here a second time; the first is in {line}.")
                continue
            self._document.keys[here] = _place(key_node)
            result[key] = self.value(value_node, here, depth + 1)
        return {**merged, **result}

    def _merge(self, merged: dict[str, Any], value: Any) -> None:
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                merged.update({key: item for key, item in each.items() if key not in merged})

    def _scalar(self, node: ScalarNode) -> Any:
        if str(node.tag).endswith("timestamp"):
            return node.value
        return self._constructor.construct_object(node)

    def _refuse_size(self, node: Node, path: Path, depth: int) -> None:
        if id(node) in self._inside:
            self._wrong(path, "the alias stands inside what it refers to.")
        elif depth > MAX_DEPTH:
            self._wrong(path, f"nested deeper than {MAX_DEPTH} levels.")
        elif self._left == -1:
            self._wrong(path, f"aliases blow this file up to more than {MAX_NODES} values.")

    def _wrong(self, path: Path, message: str) -> None:
        self._document.problems.append(self._document.problem(path, message))


def _place(node: Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _reason(error: MarkedYAMLError, text: str, mark: Any) -> str:
    problem = str(error.problem or error.context or "it cannot be parsed").strip()
    lines = text.splitlines()
    if mark is not None and mark.line < len(lines) and lines[mark.line][: mark.column + 1].endswith("\t"):
        return "a tab stands where only spaces may indent"
    return problem
