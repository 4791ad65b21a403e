"""Tests of the generated type of `bus.emit`."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import hookbus._run.emit_overloads
import hookbus.base_listeners
from hookbus._events.points import POINT_ALIASES
from hookbus.lifecycle import POINTS

TEXT = Path(hookbus._run.emit_overloads.__file__).read_text()


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", Path(__file__).parents[1] / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow  # starts ruff
def test_overloads_file_is_up_to_date() -> None:
    assert generator().emit_text() == TEXT


def test_base_listeners_file_is_up_to_date() -> None:
    assert generator().base_listeners_text() == Path(hookbus.base_listeners.__file__).read_text()


def test_overloads_contain_every_point_with_aliases_and_arguments() -> None:
    overloads = {}
    for node in ast.walk(ast.parse(TEXT)):
        if isinstance(node, ast.FunctionDef):
            _, point = node.args.posonlyargs
            assert point.annotation is not None
            for name in re.findall(r"'(\w+)'", ast.unparse(point.annotation)):
                assert name not in overloads
                overloads[name] = tuple(argument.arg for argument in node.args.kwonlyargs)
    names = {**{name: name for name in POINTS}, **POINT_ALIASES}
    assert overloads == {name: POINTS[point].args for name, point in names.items()}


def test_metrics_argument_accepts_any_mapping() -> None:
    assert "metrics: Mapping[str, Any] | None = ..." in TEXT
    assert "Metrics" not in TEXT
