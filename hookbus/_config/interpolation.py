"""References to environment variables in run files, `${env:NAME}` and `${env:NAME,default}`: resolved and written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from operator import getitem
from typing import Any

from hookbus._config import yaml as _yaml
from hookbus._config.document import Document, Path, Reference
from hookbus._config.yaml import invalid_character, parse
from hookbus._utils.imports import suggest_if_close
from hookbus._utils.redaction import redact
from hookbus._utils.secrets import REDACTED, is_secret
from hookbus._utils.values import escape_control_characters, format_value, iter_leaves, shorten

REFERENCE_PATTERN = r"\$\{env:[^}]*\}"
"""Pattern of a reference, for the schema of editors."""

SAMPLE_SECRET = "Zq9xK2vL8mN4"
"""Text that is redacted wherever a secret is."""

MAX_TOTAL_LENGTH = 2**20
"""Maximum number of characters of all resolved values: a variable may be long and referred to often."""

TOKEN_LIMIT: Path = ("training", "tokens")
"""Path of a number whose key resembles that of a secret."""

# Other text after `${`, such as a formula, is literal.
_TOKEN = re.compile(r"\$\$\{|\$\{((?=env:|[A-Za-z_][\w.]*[:}])[^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"(?<!\$)\$\{([^}]*)\}")
_SCHEME = re.compile(r"(?i)(?:(?:bearer|basic|token)\s+)?")
_SCHEMED_REFERENCE = re.compile(rf"({_SCHEME.pattern[4:]})\$\{{[^}}]*\}}", re.IGNORECASE)
_SCALAR = re.compile(r"\S{1,100}")


def resolve_references(document: Document) -> None:
    """Replace the references in the values of a document by the values of the variables.

    A value that consists of one reference is read as if its text were written in the file: `8080` is a number. It
    stays a string if its key names a secret, or if a string is required, see `settle_types`. The values of variables
    are not searched for references. `$${` is a literal `${`. Errors are added to the problems of the document.
    """
    resolver = _Resolver()
    for parent, key, path in _iter_strings(document.data, ()):
        template = parent[key]
        try:
            text = resolver.resolve(template)
        except ValueError as error:
            parent[key] = None
            document.reject(path, str(error))
            continue
        parent[key] = text
        if names := [_split(match[1])[1] for match in _TOKEN.finditer(template) if match[1]]:
            document.references[path] = Reference(template, text, tuple(names))
            if _TOKEN.fullmatch(template) and (path == TOKEN_LIMIT or not is_secret(get_key(path))):
                parent[key] = _parse_scalar(text)


def resolve_text(text: str) -> str:
    """Return a text with its references replaced.

    Raises:
        ValueError: If a reference is invalid, or if a variable is not set and has no default.
    """
    return _Resolver().resolve(text)


def settle_types(data: Any, references: Iterable[tuple[Path, str]], find_errors: Callable[[], Iterable[Path]]) -> None:
    """Use the text of a variable instead of the number that it denotes where a string is required.

    Args:
        data: Data with resolved references. Modified in place.
        references: Paths of references in the data, and the texts of the variables.
        find_errors: Function that validates the data and returns the paths of the errors.
    """
    numbers = {path: (reduce(getitem, path, data), text) for path, text in references}
    numbers = {path: pair for path, pair in numbers.items() if not isinstance(pair[0], str)}
    if not numbers:
        return
    changed = _select_below(numbers, find_errors())
    for path in changed:
        _set(data, path, numbers[path][1])
    # Neither form is valid: the error message should contain the number.
    for path in _select_below(changed, find_errors()) if changed else ():
        _set(data, path, numbers[path][0])


def get_safe_template(template: str, *, hidden: bool) -> str | None:
    """Return a template that can be recorded instead of a secret, without defaults; None if it contains a secret.

    Args:
        template: Text in the run file.
        hidden: Whether the whole value is a secret, and not only a part of it such as a password in a URL.
    """
    if hidden:
        is_safe = _SCHEME.fullmatch(_REFERENCE.sub("", template)) is not None
    else:
        # Nothing but references may be redacted, possibly together with the scheme of an authorization before them.
        redacted = redact(_REFERENCE.sub(SAMPLE_SECRET, template))
        parts = _SCHEMED_REFERENCE.split(template)
        pattern = "".join(
            f"(?:{re.escape(part)}{SAMPLE_SECRET}|{re.escape(REDACTED)})" if index % 2 else re.escape(part)
            for index, part in enumerate(parts)
        )
        is_safe = re.fullmatch(pattern, redacted) is not None
    return _REFERENCE.sub(lambda match: f"${{env:{_split(match[1])[1]}}}", template) if is_safe else None


def get_key(path: Path) -> str:
    """Return the key of a value; an item of a list has the key of the list."""
    return next((key for key in reversed(path) if isinstance(key, str)), "")


def _iter_strings(data: Any, path: Path) -> Iterator[tuple[Any, Any, Path]]:
    """Yield the container, the key and the path of each string with a reference."""
    for key, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
        if isinstance(value, (dict, list)):
            yield from _iter_strings(value, (*path, key))
        elif isinstance(value, str) and "${" in value:
            yield data, key, (*path, key)


class _Resolver:
    """Replace references by the values of variables, of which all together have a maximum length."""

    def __init__(self) -> None:
        self._remaining = MAX_TOTAL_LENGTH

    def resolve(self, template: str) -> str:
        """Return a text with its references resolved.

        Raises:
            ValueError: If a reference is invalid, or if a variable is not set and has no default.
        """
        text = _TOKEN.sub(self._replace, template)
        if error := invalid_character(text):
            raise ValueError(error)
        return text

    def _replace(self, match: re.Match[str]) -> str:
        text = "${" if match[0] == "$${" else _get_value(match)
        self._remaining -= len(text)
        if self._remaining < 0:
            raise ValueError(f"the values of environment variables have more than {MAX_TOTAL_LENGTH:,} characters.")
        return text


def _get_value(match: re.Match[str]) -> str:
    """Return the value of the variable that a reference names, or its default."""
    kind, name, default = _split(match[1])
    if not match[2] or kind != "env" or "${" in match[1]:
        raise ValueError(
            f"invalid reference {format_value(match[0])}. Write ${{env:NAME}} or ${{env:NAME,default}} for an "
            "environment variable, which cannot be nested, and $${ for a literal ${."
        )
    if _NAME.fullmatch(name) is None:
        example = _NAME.match(name)
        hint = f" Write ${{env:{example[0]},default}} for a default." if example else ""
        raise ValueError(f"invalid name {format_value(name)} of an environment variable.{hint}")
    if name not in os.environ and default is None:
        raise ValueError(
            f"the environment variable {shorten(name)} is not set.{suggest_if_close(name, os.environ)} Set it, or "
            f"write ${{env:{shorten(name)},default}}."
        )
    return os.environ.get(name, default or "")


def _split(body: str) -> tuple[str, str, str | None]:
    """Return the kind, the name and the default of a reference; None without a default."""
    kind, _, rest = body.partition(":")
    name, comma, default = rest.partition(",")
    return kind, name.strip(), default.strip() if comma else None


def _parse_scalar(text: str) -> Any:
    """Return the number, boolean or null that a text denotes in YAML, else the text."""
    stripped = text.strip()
    if _SCALAR.fullmatch(stripped) is None:
        return text
    value = parse(stripped, "value").data
    return value if isinstance(value, (int, float)) or stripped == "null" else text


def _select_below(paths: Iterable[Path], errors: Iterable[Path]) -> list[Path]:
    """Return the paths at which, or at a parent of which, there is an error."""
    invalid = {path for path in errors if path}
    return [path for path in paths if any(path[:end] in invalid for end in range(1, len(path) + 1))]


def _set(data: Any, path: Path, value: Any) -> None:
    reduce(getitem, path[:-1], data)[path[-1]] = value


def dump_resolved(
    raw: Mapping[str, Any], shown: Mapping[str, Any], document: Document, to_file_path: Callable[[Path], Path]
) -> str:
    """Serialize a configuration as a run file without secrets.

    A secret from the environment is written as its reference, so that the file can be used again; another one as
    `***`, with a comment that states where it is set.
    """
    writer = _Writer(document, to_file_path)
    lines = _yaml.dump(_map_pairs(raw, shown, writer.convert)).split("\n")
    locations = _yaml.parse("\n".join(lines), "").value_locations if writer.comments else {}
    for path, comment in writer.comments.items():
        location = locations.get(path)
        if isinstance(location, tuple):
            lines[location[0] - 1] += f"  # {comment}"
    return "\n".join(lines)


def show_references(
    raw: Mapping[str, Any], dumped: Mapping[str, Any], document: Document, to_file_path: Callable[[Path], Path]
) -> Any:
    """Return a dump in which secrets from the environment are replaced by their references, for records."""
    if not document.references:
        return dumped
    shown = _map_pairs(raw, redact(dumped), _Writer(document, to_file_path).convert)
    return _map_pairs(dumped, shown, _select_reference)


def reject_redacted_values(document: Document) -> None:
    """Add a problem to a document for each secret that was redacted when the file was written."""
    for path, value in iter_leaves(document.data):
        if isinstance(value, str) and _is_redacted(value, get_key(path)):
            name = "".join(character if character.isalnum() else "_" for character in get_key(path)).upper()
            document.reject(
                path,
                "the secret was redacted when this file was written. Set it, preferably as a reference to an "
                f"environment variable: ${{env:{shorten(name) or 'NAME'}}}.",
            )


def _map_pairs(left: Any, right: Any, convert: Callable[[Any, Any, Path], Any], path: Path = ()) -> Any:
    """Return a structure with the converted leaves of two structures that have the same keys."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        triples = zip(right, left.values(), right.values(), strict=True)
        return {key: _map_pairs(one, other, convert, (*path, key)) for key, one, other in triples}
    if isinstance(left, list) and isinstance(right, list):
        pairs = enumerate(zip(left, right, strict=True))
        return [_map_pairs(one, other, convert, (*path, i)) for i, (one, other) in pairs]
    return convert(left, right, path)


class _Writer:
    """Select what is written for each value, and collect the comments."""

    def __init__(self, document: Document, to_file_path: Callable[[Path], Path]) -> None:
        self._document, self._to_file_path = document, to_file_path
        self.comments: dict[Path, str] = {}

    def convert(self, raw: Any, shown: Any, path: Path) -> Any:
        place = self._to_file_path(path)
        reference = self._document.references.get(place)
        # A number has no secrets, and nan differs from itself.
        if raw == shown or not isinstance(shown, str):
            if reference is not None:
                self._add_comment(path, f"from the environment: {', '.join(reference.names)}")
            return _escape(raw)
        template = get_safe_template(reference.template, hidden=shown == REDACTED) if reference is not None else None
        if template is None:
            self._add_comment(path, f"redacted: set {self._document.format_source(place)}")
        return _escape(shown) if template is None else template

    def _add_comment(self, path: Path, comment: str) -> None:
        self.comments[path] = escape_control_characters(shorten(comment, 200))


def _escape(value: Any) -> Any:
    """Escape `${`, which would be a reference when the file is loaded."""
    return value.replace("${", "$${") if isinstance(value, str) else value


def _select_reference(dumped: Any, shown: Any, _: Path) -> Any:
    """Return the shown value if it refers to the environment, else the dumped one."""
    is_reference = isinstance(shown, str) and "${env:" in shown.replace("$${", "")
    return shown if is_reference else dumped


def _is_redacted(value: str, key: str) -> bool:
    if REDACTED not in value:
        return False
    return value == REDACTED or redact(value.replace(REDACTED, SAMPLE_SECRET), key) == value
