"""JSON schema of run files for editors: the models of the core and of every installed hook."""

from __future__ import annotations

import inspect
import re
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from hookbus import discovery
from hookbus._cli.schema_unions import REFERENCE, Schema, rewrite, select
from hookbus._config.hooks import HOOKS, get_hook_class
from hookbus._config.models import RunConfig
from hookbus._utils.plugin_entries import short_names
from hookbus.errors import PluginError
from hookbus.hook import Hook, HookConfig

Branch = tuple[list[str], Schema, Schema]
"""Names of a hook, schema of its settings, and the referenced definitions."""
REQUIRING = ("required", "oneOf")
"""Keywords that require keys of a section."""
DEFAULTS = {
    "description": "Files that this file extends, relative to it; later ones override earlier ones.",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"const": False}],
}
"""Schema of the files that a run file extends; `false` excludes the project and the environment."""
IMPORT_STRING = {"type": "string", "pattern": ":"}
"""Schema of an import string."""
HAS_TYPE = {"type": "object", "required": ["type"]}
"""Schema of a mapping with a type."""


def json_schema() -> tuple[Schema, list[str]]:
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
    for names, settings, more in branches:
        definitions |= more
        definitions[f"settings.{_key(names)}"] = settings
    known = [names for names, _, _ in branches]
    definitions["hook_type"] = _type_schema(known)
    definitions["hook"] = _hook_schema(known)
    properties["hooks"] = _hooks_schema(known, properties["hooks"]["description"])
    rewritten: Schema = rewrite(schema, definitions)
    rewritten["$defs"]["reference"] = REFERENCE
    return rewritten, problems


def _allow_parts(properties: Schema, definitions: Schema) -> Schema:
    """Move what the sections require to a condition: a file with `defaults` may contain parts of sections."""
    complete: Schema = {}
    for name, section in properties.items():
        for reference in re.findall(r"#/\$defs/(\w+)", str(section)):
            required = {key: definitions[reference][key] for key in REQUIRING if key in definitions[reference]}
            # A section with a default is complete without a type.
            if required and not section.get("default"):
                complete[name] = {"if": {"type": "object"}, "then": required}
    for definition in definitions.values():
        for key in REQUIRING:
            definition.pop(key, None)
    # `defaults: false`, as in the configuration that a run writes, names no file.
    extends = {"required": ["defaults"], "properties": {"defaults": {"not": {"const": False}}}}
    return {"if": extends, "else": {"properties": complete}}


def _type_schema(known: list[list[str]]) -> Schema:
    """Return the schema of the type of a hook."""
    return {"if": IMPORT_STRING, "else": {"enum": [name for names in known for name in names]}}


def _hook_schema(known: list[list[str]]) -> Schema:
    """Return the schema of a mapping with a `type`, which selects the schema of the settings."""
    # Conditions instead of a union, whose errors would be those of the whole mapping, and instead of a discriminator,
    # which editors do not implement.
    branches = [{"if": {**HAS_TYPE, "properties": {"type": {"enum": names}}}, "then": _ref(names)} for names in known]
    return {**HAS_TYPE, "properties": {"type": {"$ref": "#/$defs/hook_type"}}, "allOf": branches}


def _hooks_schema(known: list[list[str]], description: str) -> Schema:
    """Return the schema of `hooks`: a list or a mapping."""
    entry = {"$ref": "#/$defs/hook"}
    # The name is the type of an entry without a type. Null disables a hook.
    named = {
        name: {"type": ["object", "null"], **select(HAS_TYPE, entry, _ref(names))} for names in known for name in names
    }
    return {
        "description": description,
        "type": ["array", "object", "null"],
        "items": select({"type": "string"}, {"$ref": "#/$defs/hook_type"}, entry),
        "properties": named,
        "additionalProperties": entry,
    }


def _ref(names: list[str]) -> dict[str, str]:
    return {"$ref": f"#/$defs/settings.{_key(names)}"}


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
    settings.pop("type")  # an entry of a mapping of hooks may be null
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
