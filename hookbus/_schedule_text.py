"""Schedules as people write them into a run file: read as a syntax tree, never run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from typing import Any

from hookbus.errors import ConfigError, did_you_mean
from hookbus.when import Schedule, between, every, last, once

__all__ = ["parse"]

_HOW = "Write every(50), between(1, 1000), once(12) or last, combined by &, | and ~."


def parse(text: str) -> Schedule:
    """Read a schedule from a run file: `every(100) & between(1, 1000)`.

    Raises:
        ConfigError: the text is not a schedule.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # Python's, about the text
            tree = ast.parse(text.strip(), mode="eval")
        return _from_node(tree.body)
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError([f"{text!r} is not a schedule: {_reason(error).rstrip('.')}. {_HOW}"]) from None


def _reason(error: Exception) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error)


def _from_node(node: ast.expr) -> Schedule:
    match node:
        case ast.BinOp(left, ast.BitAnd(), right):
            return _from_node(left) & _from_node(right)
        case ast.BinOp(left, ast.BitOr(), right):
            return _from_node(left) | _from_node(right)
        case ast.UnaryOp(ast.Invert(), operand):
            return ~_from_node(operand)
        case ast.Name("last"):
            return last
        case ast.Call(ast.Name(name), args, keywords):
            return _called(name, [_literal(a) for a in args], {k.arg or "**": _literal(k.value) for k in keywords})
    raise TypeError(f"{ast.unparse(node)} is not part of a schedule")


def _called(name: str, args: list[Any], keywords: dict[str, Any]) -> Schedule:
    makers: dict[str, Callable[..., Schedule]] = {"every": every, "between": between, "once": once, "last": last}
    if name not in makers:
        raise TypeError(f"there is no {name}(...).{did_you_mean(name, makers)}")
    return makers[name](*args, **keywords)


def _literal(node: ast.expr) -> int | str | None:
    if isinstance(node, ast.Constant) and type(node.value) in (int, str, type(None)):
        return node.value  # type: ignore[return-value]
    raise TypeError(f"{ast.unparse(node)} is neither a whole number nor a name")
