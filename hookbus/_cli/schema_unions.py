"""Rewriting of JSON schemas such that an error is located at the value that is wrong, and not at a parent of it.

Validators and editors report an error inside a union (`anyOf`) at the union. The rewritten schemas select the branch by
the type of the value, with `if`, so that the errors are those of this branch.
"""

from __future__ import annotations

from typing import Any

from hookbus._config.interpolation import REFERENCE_PATTERN

Schema = dict[str, Any]

SCHEMAS_BY_NAME = ("properties", "$defs", "patternProperties")
"""Keywords whose value maps names to schemas."""
NO_SCHEMAS = ("default", "enum", "const", "examples", "required")
"""Keywords whose value contains no schemas."""
ANNOTATIONS = ("title", "description", "default", "examples", "deprecated")
"""Keywords that do not constrain values."""
CONTAINERS = ("object", "array")
"""Types whose values have parts."""
REFERENCE = {"type": "string", "pattern": REFERENCE_PATTERN}
"""Schema of a reference to an environment variable."""


def select(condition: Schema, schema: Schema, other: Schema) -> Schema:
    """Return a schema that applies `schema` to values that match a condition, and `other` to all others."""
    return {"if": condition, "then": schema, "else": other}


def rewrite(schema: Any, definitions: Schema) -> Any:
    """Return a schema in which unions are selected by type, and each scalar may be a reference to the environment.

    Args:
        schema: A schema, or a list of schemas.
        definitions: The definitions that the schema refers to.
    """
    if isinstance(schema, list):
        return [rewrite(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "anyOf" in schema:
        schema = {key: value for key, value in schema.items() if key != "anyOf"} | _select_branch(
            schema["anyOf"], definitions
        )
    inner = {key: _rewrite_keyword(key, value, definitions) for key, value in schema.items()}
    constraints = {key: value for key, value in inner.items() if key not in ANNOTATIONS}
    if not _is_constrained_scalar(constraints):
        return inner
    annotations = {key: value for key, value in inner.items() if key in ANNOTATIONS}
    return {**annotations, "if": {"$ref": "#/$defs/reference"}, "else": constraints}


def _rewrite_keyword(key: str, value: Any, definitions: Schema) -> Any:
    if key in SCHEMAS_BY_NAME and isinstance(value, dict):
        # The type of an object is never a reference: it selects the schema of the others.
        return {name: item if name == "type" else rewrite(item, definitions) for name, item in value.items()}
    return value if key in NO_SCHEMAS or key == "if" else rewrite(value, definitions)


def _select_branch(branches: list[Schema], definitions: Schema) -> Schema:
    """Return a schema equivalent to a union, in which the type of the value selects the branches of containers."""
    by_type = {name: [b for b in branches if _get_type(b, definitions) == name] for name in CONTAINERS}
    scalars = [branch for branch in branches if all(branch not in group for group in by_type.values())]
    types = [name for name, group in by_type.items() if group]
    schema = _merge_scalars(scalars)
    if not scalars or "type" in schema:  # for the message: the containers are selected before
        schema["type"] = [*types, *as_list(schema.get("type", []))]
    for name in types:
        group = by_type[name]
        schema = select({"type": name}, group[0] if len(group) == 1 else {"anyOf": group}, schema)
    return schema


def _merge_scalars(branches: list[Schema]) -> Schema:
    """Return a schema equivalent to a union of scalars, if possible without `anyOf`, whose errors name no reason."""
    types = [branch.get("type") for branch in branches]
    constraints = [branch for branch in branches if branch != {"type": "null"}]
    keywords = [key for branch in branches for key in branch if key != "type"]
    if len(constraints) == 1 and "enum" in constraints[0]:
        return {"enum": [*constraints[0]["enum"], *([None] if len(branches) > 1 else [])]}
    # Keywords such as `minimum` and `minLength` apply to values of one type, but not `enum` and `const`.
    is_disjoint = None not in types and len({*types}) == len(types) and not {"integer", "number"} <= {*types}
    if is_disjoint and len({*keywords}) == len(keywords) and not {"enum", "const"} & {*keywords}:
        return {key: value for branch in branches for key, value in branch.items()} | {"type": types}
    return dict(branches[0]) if len(branches) == 1 else {"anyOf": branches}


def as_list(value: Any) -> list[Any]:
    """Return a list, or a value in a list."""
    return value if isinstance(value, list) else [value]


def _get_type(branch: Schema, definitions: Schema) -> Any:
    """Return the type that a branch of a union requires, None without one."""
    while "$ref" in branch:
        branch = definitions[branch["$ref"].rpartition("/")[2]]
    return branch.get("type")


def _is_constrained_scalar(schema: Schema) -> bool:
    """Return whether a schema accepts scalars only, but not every reference."""
    if "enum" in schema or "const" in schema:
        return True
    if set(schema) == {"anyOf"}:
        return all(_is_constrained_scalar(branch) or branch.get("type") == "null" for branch in schema["anyOf"])
    types = {*as_list(schema.get("type", [*CONTAINERS]))}
    is_constrained = "string" not in types or "pattern" in schema
    return is_constrained and types != {"null"} and not types & {*CONTAINERS}
