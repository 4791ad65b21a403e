"""Parser for schedules in run files. The text is parsed into a syntax tree and never evaluated."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from typing import Any

from hookbus._events.conditions import for_loader
from hookbus._events.schedules import Schedule, between, every, last, once
from hookbus.errors import ConfigError, suggest_names

FUNCTIONS: dict[str, Callable[..., Schedule]] = {
    "every": every,
    "between": between,
    "once": once,
    "last": last,
    "for_loader": for_loader,
}
_HINT = "Use every(50), between(1, 1000), once(12) or last, combined with &, | and ~."


def parse_schedule(text: str) -> Schedule:
    """Parse a schedule of a run file, such as `every(100) & between(1, 1000)`.

    Raises:
        ConfigError: If the text is not a schedule.
    """
    try:
        # The parser warns about some invalid texts (SyntaxWarning), which are reported as errors below.
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text.strip(), mode="eval")
        return _parse_node(tree.body)
    # `ast.parse` raises RecursionError or MemoryError for deeply nested text.
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        end = "" if message.endswith((".", "?")) else "."
        raise ConfigError([f"invalid schedule, got {text!r}: {message}{end} {_HINT}"]) from None


def _parse_node(node: ast.expr) -> Schedule:
    match node:
        case ast.BinOp(left, ast.BitAnd(), right):
            return _parse_node(left) & _parse_node(right)
        case ast.BinOp(left, ast.BitOr(), right):
            return _parse_node(left) | _parse_node(right)
        case ast.UnaryOp(ast.Invert(), operand):
            return ~_parse_node(operand)
        case ast.Name("last"):
            return last
        case ast.Call(ast.Name(name), args, keywords):
            return _build_call(
                name, [_parse_literal(a) for a in args], {k.arg or "**": _parse_literal(k.value) for k in keywords}
            )
    raise TypeError(f"unsupported expression {ast.unparse(node)}")


def _build_call(name: str, args: list[Any], keywords: dict[str, Any]) -> Schedule:
    if name not in FUNCTIONS:
        raise TypeError(f"unknown function {name}.{suggest_names(name, FUNCTIONS)}")
    return FUNCTIONS[name](*args, **keywords)


def _parse_literal(node: ast.expr) -> int | float | str | None:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, str, type(None)):
        return node.value  # type: ignore[return-value]
    raise TypeError(f"expected a number or a string, got {ast.unparse(node)}")
