"""YAML 1.2 parser that returns built-in types and the location of every value.

Tags are rejected, alias expansion is limited, and errors are collected instead of raised one by one.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import CollectionStartEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.representer import SafeRepresenter

from hookbus._config.document import Document, Location, Path
from hookbus._utils.values import format_value, shorten

# Limits against "billion laughs" documents, whose nested aliases expand exponentially.
MAX_NODES = 20_000
MAX_DEPTH = 60
MAX_INTEGER_BITS = 1024
STANDARD_TAG_PREFIX = "tag:yaml.org,2002:"
PLAIN_TAGS = {STANDARD_TAG_PREFIX + name for name in ("str", "int", "float", "bool", "null", "seq", "map", "timestamp")}


def parse(text: str, name: str) -> Document:
    """Parse YAML. Errors are collected in `problems`; `data` contains the values that could be parsed."""
    document = Document(name)
    try:
        yaml = YAML(typ="safe", pure=True)
        yaml.Composer = _BoundedComposer
        node = yaml.compose(text)
        if node is None:
            document.problems.append(document.format_problem_at((1, 1), "the file is empty."))
        else:
            document.data = _Converter(document).convert(node, ())
    except _ParsingAbortedError as error:
        document.problems.append(document.format_problem_at(error.location, str(error)))
    except YAMLError as error:
        location, reason = _describe_error(error, text)
        document.problems.append(document.format_problem_at(location, f"invalid YAML: {reason}."))
    return document


def parse_value(text: str) -> Any:
    """Parse a single YAML value: `1e-3` is a number, `on` a string, `[1, 2]` a list, empty text None.

    Raises:
        ValueError: If the text is not valid YAML.
    """
    if not text.strip():
        return None
    if text.lstrip().startswith("#"):
        raise ValueError("the value is a comment in YAML, which starts with #. Quote the value.")
    document = parse(text, "value")
    if document.problems:
        raise ValueError(document.problems[0].partition(": ")[2])
    if "#" in text and _ends_with_comment(text):
        raise ValueError("the value contains a comment in YAML, which starts with #. Quote the value.")
    return document.data


def _ends_with_comment(text: str) -> bool:
    """Return whether a comment, which would be dropped, follows a valid value."""
    node = YAML(typ="safe", pure=True).compose(text)
    return bool(text[node.end_mark.index :].strip())


def invalid_character(text: str) -> str:
    """Return a message if a string contains a character that file names cannot contain, else ""."""
    invalid = next((character for character in text if character == "\0" or "\ud800" <= character <= "\udfff"), None)
    return (
        "" if invalid is None else f"invalid character U+{ord(invalid):04X}, which no file name can contain. Remove it."
    )


def dump(data: Any) -> str:
    """Serialize built-in types as YAML, such that `parse` returns equal data. The order of mappings is preserved."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.allow_unicode = True
    # A line break inside a scalar would make the file harder to edit.
    yaml.width = 1_000_000
    stream = io.StringIO()
    yaml.dump(data, stream)
    return stream.getvalue()


class _Representer(SafeRepresenter):
    """Represent strings with non-printable characters in double quotes, the only style that escapes them."""

    def represent_str(self, data: str) -> ScalarNode:
        style = None if data.isprintable() else '"'
        return self.represent_scalar(STANDARD_TAG_PREFIX + "str", data, style=style)


_Representer.add_representer(str, _Representer.represent_str)


class _ParsingAbortedError(Exception):
    """Abort parsing: the file exceeds a limit."""

    def __init__(self, source: Any, message: str) -> None:
        super().__init__(message)
        self.location = _get_location(source)


TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels."
TOO_MANY = f"more than {MAX_NODES} values in one file; an alias counts each time it is used."


class _BoundedComposer(Composer):
    """Composer that stops at the limits, so that the time to read a hostile file is bounded."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self._nodes, self._depth = 0, 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.parser.peek_event()
        self._nodes += 1
        # A mapping has two nodes for each of its values.
        if self._nodes > 2 * MAX_NODES:
            raise _ParsingAbortedError(event, TOO_MANY)
        if self._depth >= MAX_DEPTH and isinstance(event, CollectionStartEvent):
            raise _ParsingAbortedError(event, TOO_DEEP)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Converter:
    """Convert YAML nodes to data and store their locations."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._remaining_nodes = MAX_NODES
        self._open_node_ids: set[int] = set()
        self._constructor = YAML(typ="safe", pure=True).constructor

    def convert(self, node: Node, path: Path) -> Any:
        self._document.value_locations[path] = _get_location(node)
        self._count(node)
        if node.tag not in PLAIN_TAGS:
            return self._document.reject(
                path, f"unsupported tag {_shorten_tag(node.tag)}. Remove it: a run file contains plain YAML."
            )
        if isinstance(node, ScalarNode):
            return self._convert_scalar(node, path)
        if id(node) in self._open_node_ids:
            return self._document.reject(path, "the alias refers to a node that contains it.")
        with self._enter_node(node):
            if isinstance(node, SequenceNode):
                return [self.convert(item, (*path, i)) for i, item in enumerate(node.value)]
            result: dict[str, Any] = {}
            self._fill(result, node, path)
            return result

    def _fill(self, result: dict[str, Any], node: Node, path: Path) -> None:
        """Add the pairs of a mapping node. Existing keys are kept."""
        own: dict[str, Node] = {}
        merged: list[Node] = []
        for key_node, value_node in node.value:
            key = key_node.value
            if key_node.tag == STANDARD_TAG_PREFIX + "merge":
                merged += value_node.value if isinstance(value_node, SequenceNode) else [value_node]
            elif not isinstance(key_node, ScalarNode):
                self._add_problem(key_node, path, "a key should be a scalar, not a list or a mapping.")
            elif error := invalid_character(key):
                self._add_problem(key_node, path, error)
            elif key in own:
                first = _get_location(own[key])[0]
                self._add_problem(key_node, (*path, key), f"duplicate key; the first is in line {first}.")
            else:
                own[key] = key_node
                if key not in result:
                    self._document.key_locations[*path, key] = _get_location(key_node)
                    result[key] = self.convert(value_node, (*path, key))
                    if value_node.start_mark.index == value_node.end_mark.index:  # nothing follows the colon
                        # The parser locates an empty value at the next key, which may be several lines below.
                        end = key_node.end_mark
                        self._document.value_locations[*path, key] = end.line + 1, end.column + 2
        # Keys merged by `<<` have the lowest precedence (YAML merge-key specification), so they are added last.
        for merged_node in merged:
            self._merge(result, merged_node, path)

    def _merge(self, result: dict[str, Any], node: Node, path: Path) -> None:
        self._count(node)
        if id(node) in self._open_node_ids:
            self._add_problem(node, path, "the alias refers to a node that contains it.")
        elif not isinstance(node, MappingNode):
            self._add_problem(node, path, "<< should refer to a mapping.")
        else:
            with self._enter_node(node):
                self._fill(result, node, path)

    def _convert_scalar(self, node: ScalarNode, path: Path) -> Any:
        # Dates stay strings: JSON, which validates the data, has no type for them.
        if str(node.tag) == STANDARD_TAG_PREFIX + "timestamp":
            return node.value
        if error := invalid_character(node.value):
            return self._document.reject(path, error)
        try:
            value = self._constructor.construct_object(node)
        except (ValueError, KeyError, YAMLError):
            return self._document.reject(
                path, f"{format_value(node.value)} cannot be parsed as {_shorten_tag(node.tag)}."
            )
        if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            return self._document.reject(
                path, f"integer of more than {MAX_INTEGER_BITS} bits, got {format_value(node.value)}."
            )
        return value

    @contextmanager
    def _enter_node(self, node: Node) -> Iterator[None]:
        if len(self._open_node_ids) >= MAX_DEPTH:
            raise _ParsingAbortedError(node, TOO_DEEP)
        self._open_node_ids.add(id(node))
        yield
        self._open_node_ids.discard(id(node))

    def _count(self, node: Node) -> None:
        self._remaining_nodes -= 1
        if self._remaining_nodes < 0:
            raise _ParsingAbortedError(node, TOO_MANY)

    def _add_problem(self, node: Node, path: Path, message: str) -> None:
        self._document.problems.append(self._document.format_problem_at(_get_location(node), message, path))


def _get_location(source: Any) -> tuple[int, int]:
    """Return the location of a node or of an event of the parser."""
    return source.start_mark.line + 1, source.start_mark.column + 1


def _shorten_tag(tag: object) -> str:
    return shorten(str(tag).replace(STANDARD_TAG_PREFIX, "!!"))


def _describe_error(error: YAMLError, text: str) -> tuple[Location, str]:
    """Return the location and the reason of a YAML error."""
    if isinstance(error, ReaderError):
        before = text[: error.position]
        location = before.count("\n") + 1, len(before) - before.rfind("\n")
        return location, f"the character U+{ord(text[error.position]):04X} is not allowed"
    if not isinstance(error, MarkedYAMLError):
        return (1, 1), str(error).strip()
    mark = error.problem_mark or error.context_mark
    location = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    lines = text.split("\n")
    if mark and mark.line < len(lines) and lines[mark.line][: mark.column + 1].endswith("\t"):
        return location, "tab character; indent and separate with spaces only"
    return _explain_problem(error, location)


def _explain_problem(error: MarkedYAMLError, location: tuple[int, int]) -> tuple[Location, str]:
    """Return the location and the reason of an error, which the parser often notices in a later line."""
    problem, context, start = str(error.problem or error.context).strip(), str(error.context), error.context_mark
    place = (start.line + 1, start.column + 1) if start else location
    if context == "while scanning a simple key":
        return place, "expected a colon and a space after the key"
    if context == "while scanning a quoted scalar" and problem == "found unexpected end of stream":
        return place, "the quotation mark is not closed"
    if context.startswith("while parsing a flow") and place[0] != location[0]:
        return location, f"{problem}; the bracket is opened in line {place[0]}"
    return location, f"{context}, {problem}" if problem.startswith("but ") else problem
