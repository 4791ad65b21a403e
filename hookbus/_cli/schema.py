"""JSON schema of run files for editors: the models of the core and of every installed hook."""

from __future__ import annotations

import inspect
import re
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from hookbus import discovery
from hookbus._config.hooks import HOOKS, get_hook_class
from hookbus._config.interpolation import REFERENCE_PATTERN
from hookbus._config.models import RunConfig
from hookbus._utils.plugin_entries import short_names
from hookbus.errors import PluginError
from hookbus.hook import Hook, HookConfig


def json_schema() -> tuple[dict[str, Any], list[str]]:
    """Generate the JSON schema of run files.

    Returns:
        The schema, and one message per installed hook that cannot be imported.
    """
    schema = RunConfig.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    properties, definitions = schema["properties"], schema["$defs"]
    schema |= _allow_parts(properties, definitions)
    properties["defaults"] = DEFAULTS
    properties["experiment_dir"] = {**properties["work_dir"], "description": "Alias of work_dir."}
    properties["load_from"]["anyOf"].insert(0, {"type": "string"})
    branches, problems = _build_branches()
    # Every branch constrains its own `type`, because editors do not implement discriminators.
    for names, settings, more in branches:
        definitions |= more
        definitions[f"settings.{_key(names)}"] = settings
        definitions[f"hook.{_key(names)}"] = {**_ref("settings", names), "required": ["type"]}
    known = [names for names, _, _ in branches]
    definitions["hook"] = _hook_schema(known)
    properties["hooks"] = _hooks_schema(known, properties["hooks"]["description"])
    accepting: dict[str, Any] = _accept_references(schema)
    accepting["$defs"]["reference"] = {"type": "string", "pattern": REFERENCE_PATTERN}
    return accepting, problems


Branch = tuple[list[str], dict[str, Any], dict[str, Any]]
"""Names of a hook, schema of its settings, and the referenced definitions."""
SCHEMAS_BY_NAME = ("properties", "$defs", "patternProperties")
"""Keywords whose value maps names to schemas."""
NO_SCHEMAS = ("default", "enum", "const", "examples", "required")
"""Keywords whose value contains no schemas."""
REQUIRING = ("required", "oneOf")
"""Keywords that require keys of a section."""
ANNOTATIONS = ("title", "description", "default", "examples", "deprecated")
"""Keywords that do not constrain values."""
DEFAULTS = {
    "description": "Files that this file extends, relative to it; later ones override earlier ones.",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"const": False}],
}
"""Schema of the files that a run file extends; `false` excludes the project and the environment."""
IMPORT_STRING = {"type": "string", "pattern": ":"}
"""Schema of an import string."""


def _allow_parts(properties: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Move what the sections require to a condition: a file with `defaults` may contain parts of sections."""
    complete: dict[str, Any] = {}
    for name, section in properties.items():
        for reference in re.findall(r"#/\$defs/(\w+)", str(section)):
            required = {key: definitions[reference][key] for key in REQUIRING if key in definitions[reference]}
            if required:
                complete[name] = {"if": {"type": "object"}, "then": required}
    for definition in definitions.values():
        for key in REQUIRING:
            definition.pop(key, None)
    return {"if": {"required": ["defaults"]}, "else": {"properties": complete}}


def _accept_references(schema: Any) -> Any:
    """Return a schema in which each scalar may also be a reference to an environment variable."""
    if isinstance(schema, list):
        return [_accept_references(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {
        key: {name: item if name == "type" else _accept_references(item) for name, item in value.items()}
        if key in SCHEMAS_BY_NAME and isinstance(value, dict)
        else value
        if key in NO_SCHEMAS
        else _accept_references(value)
        for key, value in schema.items()
    }
    constraints = {key: value for key, value in inner.items() if key not in ANNOTATIONS}
    if not _is_scalar(constraints):
        return inner
    annotations = {key: value for key, value in inner.items() if key in ANNOTATIONS}
    return {**annotations, "anyOf": [constraints, {"$ref": "#/$defs/reference"}]}


def _is_scalar(schema: dict[str, Any]) -> bool:
    """Return whether a schema accepts scalars only, but not every string."""
    type_ = schema.get("type")
    is_constrained_string = type_ == "string" and len(schema) > 1
    return "enum" in schema or "const" in schema or type_ in ("integer", "number", "boolean") or is_constrained_string


def _hook_schema(known: list[list[str]]) -> dict[str, Any]:
    """Return the schema of a mapping with a `type`."""
    own = {"type": "object", "required": ["type"], "properties": {"type": IMPORT_STRING}}
    return {"anyOf": [*(_ref("hook", names) for names in known), own]}


def _hooks_schema(known: list[list[str]], description: str) -> dict[str, Any]:
    """Return the schema of `hooks`: a list or a mapping."""
    entry = {"$ref": "#/$defs/hook"}
    items = {"anyOf": [{"enum": [name for names in known for name in names]}, IMPORT_STRING, entry]}
    named = {name: {"anyOf": [{"type": "null"}, _ref("settings", names), entry]} for names in known for name in names}
    mapping = {"type": "object", "properties": named, "additionalProperties": entry}
    return {
        "description": description,
        "anyOf": [{"type": "array", "items": items}, mapping, {"type": "null"}],
    }


def _ref(kind: str, names: list[str]) -> dict[str, str]:
    return {"$ref": f"#/$defs/{kind}.{_key(names)}"}


def _key(names: list[str]) -> str:
    return names[0].replace("/", ".")


def _build_branches() -> tuple[list[Branch], list[str]]:
    """Return the branches of the importable hooks that are not blocked, and the errors of the others."""
    branches, problems = [], []
    for plugin, name in short_names(discovery.list_entries()).items():
        if plugin.blocked:
            continue
        try:
            cls = get_hook_class(plugin.full_name)
        except PluginError as error:
            problems.append(str(error))
            continue
        is_alone = name == plugin.name
        branches.append(_build_branch([name, *plugin.names] if is_alone else [name], cls))
    branches += [_build_branch([name], get_hook_class(name)) for name in HOOKS]
    return branches, problems


def _build_branch(names: list[str], cls: Any) -> Branch:
    prefix = f"{_key(names)}."
    settings = _settings_schema(cls, f"#/$defs/{prefix}{{model}}")
    definitions = {prefix + name: definition for name, definition in settings.pop("$defs", {}).items()}
    all_names = list(dict.fromkeys(names))
    settings["properties"] = {"type": {"enum": all_names}, **settings.get("properties", {})}
    return all_names, settings, definitions


def _settings_schema(cls: Any, references: str) -> dict[str, Any]:
    """Return the schema of the settings of a hook class: config model, else common keys and keyword arguments."""
    parameters = inspect.signature(cls).parameters
    if issubclass(cls, Hook) and "config" in parameters:
        config: type[HookConfig] = cls.Config
        return config.model_json_schema(ref_template=references, schema_generator=_LenientSchemaGenerator)
    common = HookConfig.model_json_schema(ref_template=references)["properties"] if issubclass(cls, Hook) else {}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    own: dict[str, Any] = {name: {} for name in parameters}
    return {"type": "object", "properties": {**common, **own}, "additionalProperties": takes_any}


class _LenientSchemaGenerator(GenerateJsonSchema):
    """Schema generator that accepts any value for types without a JSON schema, such as functions."""

    def handle_invalid_for_json_schema(self, *_: Any) -> dict[str, Any]:
        return {}
