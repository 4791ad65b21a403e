"""Tests of reading files and copying mappings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hookbus._config.reading import load_document, read_text
from hookbus.errors import ConfigError

if TYPE_CHECKING:
    from tests.conftest import Project


class TestDocuments:
    def test_mapping_is_copied(self) -> None:
        inner = [1, 2]
        document = load_document({"a": inner, "b": (Path("x"),), 3: None})
        assert document.data == {"a": [1, 2], "b": ["x"], "3": None}
        assert document.data["a"] is not inner

    def test_unsupported_value_is_reported_with_its_path(self) -> None:
        with pytest.raises(ConfigError, match=r"^config: a\.0: invalid character U\+0000"):
            load_document({"a": ["x\0"]})
        with pytest.raises(
            ConfigError, match=r"^config: a\.0\.b: should be a built-in type, got <object object at .*>"
        ):
            load_document({"a": [{"b": object()}]})

    def test_missing_file_is_an_error(self, project: Project) -> None:
        with pytest.raises(ConfigError, match="^no.yaml: the run file cannot be read: No such file or directory.$"):
            load_document("no.yaml")


class TestText:
    def test_line_ends_and_the_byte_order_mark_are_normalized(self, project: Project) -> None:
        (project.path / "x.toml").write_bytes(b"\xef\xbb\xbfa = 1\r\nb = 2\r\n")
        assert read_text("x.toml", "file") == "a = 1\nb = 2\n"

    def test_error_names_the_kind_of_the_file(self, project: Project) -> None:
        with pytest.raises(ConfigError, match=r"^x\.toml: the file cannot be read: No such file or directory\.$"):
            read_text("x.toml", "file")
