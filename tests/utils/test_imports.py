"""Tests of import strings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hookbus._utils.imports import describe_error, import_string, resolve_import, suggest_if_close


@pytest.fixture
def current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    return tmp_path


def write_module(current_directory: Path, name: str, text: str) -> None:
    (current_directory / f"{name}.py").write_text(text)


def test_import_string_has_a_colon_or_dots() -> None:
    assert import_string("pathlib:Path") is Path
    assert import_string("pathlib.Path") is Path
    assert import_string("pathlib:Path.home") == Path.home


def test_modules_in_the_current_directory_are_imported(current_directory: Path) -> None:
    write_module(current_directory, "beside_me_1", "value = 3\n")
    assert import_string("beside_me_1:value") == 3


def test_setting_is_an_object_or_an_import_string() -> None:
    assert resolve_import("json:dumps") is json.dumps
    assert resolve_import(json.dumps) is json.dumps
    assert resolve_import(None) is None


def test_failed_import_of_a_setting_is_a_value_error() -> None:
    message = r"^'json:dump5' cannot be imported: json has no attribute 'dump5'\. Did you mean"
    with pytest.raises(ValueError, match=message):
        resolve_import("json:dump5")


def test_missing_module_is_named(current_directory: Path) -> None:
    with pytest.raises(ImportError) as caught:
        import_string("nowhere_1:thing")
    assert str(caught.value) == (
        "'nowhere_1:thing' cannot be imported: ModuleNotFoundError: No module named 'nowhere_1'."
    )


def test_close_match_is_suggested(current_directory: Path) -> None:
    write_module(current_directory, "beside_me_2", "def factory(): ...\n")
    with pytest.raises(ImportError) as caught:
        import_string("beside_me_2:factoy")
    assert str(caught.value) == (
        "'beside_me_2:factoy' cannot be imported: beside_me_2 has no attribute 'factoy'. Did you mean 'factory'?"
    )


@pytest.mark.parametrize("path", [":x", "x:", "", ".", "a b:c"])
def test_invalid_import_string_is_an_import_error(current_directory: Path, path: str) -> None:
    with pytest.raises(ImportError, match="cannot be imported"):
        import_string(path)


@pytest.mark.parametrize(
    ("name", "text", "cause"),
    [
        ("raising_1", "a = 1\nraise ValueError('no good')\n", r"ValueError: no good \(.*raising_1\.py, line 2\)\.$"),
        ("misspelt_1", "a = = 1\n", r"SyntaxError: invalid syntax \(misspelt_1\.py, line 1\)\.$"),
        ("exiting_1", "import sys\nsys.exit(3)\n", r"SystemExit: 3 \(.*exiting_1\.py, line 2\)\.$"),
        ("lacking_1", "import surely_not_there\n", r"ModuleNotFoundError: No module named 'surely_not_there'\.$"),
    ],
)
def test_failed_import_has_cause_and_location(current_directory: Path, name: str, text: str, cause: str) -> None:
    write_module(current_directory, name, text)
    with pytest.raises(ImportError, match=cause):
        import_string(f"{name}:x")


def test_error_in_an_installed_package_has_no_location() -> None:
    import torch

    with pytest.raises(ValueError, match="learning rate") as caught:
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=-1.0)
    assert describe_error(caught.value) == "ValueError: Invalid learning rate: -1.0"


def test_multi_line_error_is_described_on_one_line() -> None:
    assert describe_error(ValueError("one\n  two\n\nthree.")) == "ValueError: one two three"
    assert describe_error(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_only_close_matches_are_suggested() -> None:
    assert suggest_if_close("epocs", ["epochs", "lr"]) == " Did you mean 'epochs'?"
    assert suggest_if_close("nothing_like_it", ["epochs", "lr"]) == ""


def test_error_in_hookbus_has_no_location() -> None:
    from hookbus._training.eval_metrics import build_metrics
    from hookbus.errors import ConfigError

    with pytest.raises(ConfigError, match=r"and 'out_features'\. Use a function"):
        build_metrics(["torch.nn:Linear"])
