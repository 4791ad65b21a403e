"""The resolved configuration as a run file without secrets, with a comment at each value from another source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookbus._config import yaml as _yaml
from hookbus._config.document import Document, Path
from hookbus._config.interpolation import SAMPLE_SECRET, get_key, get_safe_template
from hookbus._utils.redaction import redact
from hookbus._utils.secrets import REDACTED
from hookbus._utils.values import escape_control_characters, iter_leaves, shorten


def dump_resolved(
    raw: Mapping[str, Any], shown: Mapping[str, Any], document: Document, to_file_path: Callable[[Path], Path]
) -> str:
    """Serialize a configuration as a run file without secrets.

    A secret from the environment is written as its reference, so that the file can be used again; another one as
    `***`, with a comment that states where it is set.

    Args:
        raw: Configuration with secrets.
        shown: The same configuration with redacted secrets.
        document: Document from which the configuration was created.
        to_file_path: Function that converts a path in the configuration to a path in the document.
    """
    writer = _Writer(document, to_file_path)
    lines = _yaml.dump(writer.convert(raw, shown, ())).split("\n")
    locations = _yaml.parse("\n".join(lines), "").value_locations if writer.comments else {}
    for path, comment in writer.comments.items():
        location = locations.get(path)
        if isinstance(location, tuple):
            lines[location[0] - 1] += f"  # {comment}"
    return "\n".join(lines)


def show_references(
    raw: Mapping[str, Any], dumped: Mapping[str, Any], document: Document, to_file_path: Callable[[Path], Path]
) -> Any:
    """Return a dump in which secrets from the environment are replaced by their references, for records.

    Args:
        raw: Configuration with secrets.
        dumped: Dump of the configuration.
        document: Document from which the configuration was created.
        to_file_path: Function that converts a path in the configuration to a path in the document.
    """
    if not document.references:
        return dumped
    return _replace_changed(dumped, _Writer(document, to_file_path).convert(raw, redact(dumped), ()))


def reject_redacted_values(document: Document) -> None:
    """Add a problem to a document for each secret that was redacted when the file was written."""
    for path, value in iter_leaves(document.data):
        if isinstance(value, str) and _is_redacted(value, get_key(path)):
            name = "".join(character if character.isalnum() else "_" for character in get_key(path)).upper()
            message = (
                "the secret was redacted when this file was written. Set it, preferably as a reference to an "
                f"environment variable: ${{env:{shorten(name) or 'NAME'}}}."
            )
            document.problems.append(document.format_problem(path, message))
            document.mark_invalid(path)


class _Writer:
    """Select what is written for each value, and collect the comments."""

    def __init__(self, document: Document, to_file_path: Callable[[Path], Path]) -> None:
        self._document, self._to_file_path = document, to_file_path
        self.comments: dict[Path, str] = {}

    def convert(self, raw: Any, shown: Any, path: Path) -> Any:
        if isinstance(raw, Mapping) and isinstance(shown, Mapping):
            pairs = zip(raw.values(), shown.items(), strict=True)
            return {key: self.convert(value, item, (*path, key)) for value, (key, item) in pairs}
        if isinstance(raw, list) and isinstance(shown, list):
            return [
                self.convert(value, item, (*path, i)) for i, (value, item) in enumerate(zip(raw, shown, strict=True))
            ]
        place = self._to_file_path(path)
        reference = self._document.references.get(place)
        # A number has no secrets, and nan differs from itself.
        if raw == shown or not isinstance(shown, str):
            if reference is not None:
                self._add_comment(path, f"from the environment: {', '.join(reference.names)}")
            return self._escape(raw)
        template = get_safe_template(reference.template, hidden=shown == REDACTED) if reference is not None else None
        if template is None:
            self._add_comment(path, f"redacted: set {self._document.format_source(place)}")
        return self._escape(shown) if template is None else template

    def _escape(self, value: Any) -> Any:
        """Escape `${`, which would be a reference when the file is loaded."""
        return value.replace("${", "$${") if isinstance(value, str) else value

    def _add_comment(self, path: Path, comment: str) -> None:
        self.comments[path] = escape_control_characters(shorten(comment, 200))


def _replace_changed(dumped: Any, shown: Any) -> Any:
    """Return the dump with the values that are references to the environment in `shown`."""
    if isinstance(dumped, Mapping) and isinstance(shown, Mapping):
        pairs = zip(dumped.items(), shown.values(), strict=True)
        return {key: _replace_changed(value, item) for (key, value), item in pairs}
    if isinstance(dumped, list) and isinstance(shown, list):
        return [_replace_changed(value, item) for value, item in zip(dumped, shown, strict=True)]
    is_reference = isinstance(shown, str) and "${env:" in shown.replace("$${", "")
    return shown if is_reference else dumped


def _is_redacted(value: str, key: str) -> bool:
    if REDACTED not in value:
        return False
    return value == REDACTED or redact(value.replace(REDACTED, SAMPLE_SECRET), key) == value
