"""One JSON schema for run files, for editors: the models of the core and of every installed hook."""

from __future__ import annotations

from typing import Any

from hookbus import discovery
from hookbus.builder import HOOKS
from hookbus.config import RunConfig
from hookbus.errors import PluginError
from hookbus.hook import Hook, HookConfig

__all__ = ["json_schema"]


def json_schema() -> tuple[dict[str, Any], list[str]]:
    """The schema, and a sentence for each installed hook that could not be imported.

    Every branch of the hooks carries its own `type` as a constant, since editors ignore discriminators.
    """
    schema = RunConfig.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    properties = schema["properties"]
    properties["experiment_dir"] = {**properties["work_dir"], "description": "The same as work_dir."}
    path = {"type": "string"}
    properties["load_from"] = {"anyOf": [path, *properties["load_from"]["anyOf"]]}
    branches, problems = _branches()
    definitions = schema.setdefault("$defs", {})
    for names, branch in branches:
        definitions.update(branch.pop("$defs", {}))
        definitions[f"hook {names[0]}"] = branch
    known = [name for names, _ in branches for name in names]
    entries = [{"$ref": f"#/$defs/hook {names[0]}"} for names, _ in branches]
    own_path = {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"not": {"enum": known}, "type": "string"}},
    }
    entry = {"anyOf": [{"enum": known}, *entries, own_path]}
    settings = {"anyOf": [{"type": "null"}, {"type": "object"}]}
    properties["hooks"] = {
        "description": properties["hooks"]["description"],
        "anyOf": [
            {"type": "array", "items": entry},
            {"type": "object", "additionalProperties": settings},
            {"type": "null"},
        ],
    }
    return schema, problems


def _branches() -> tuple[list[tuple[list[str], dict[str, Any]]], list[str]]:
    """(names, schema) of each hook that can be imported."""
    branches, problems = [], []
    for offer in discovery.offers():
        try:
            found = discovery.load(offer)
        except PluginError as error:
            problems.append(str(error))
            continue
        branches.append(_branch([offer.name, offer.class_name, offer.full_name], found))
    branches += [_branch([name], HOOKS.get(name)) for name in HOOKS]
    return branches, problems


def _branch(names: list[str], cls: Any) -> tuple[list[str], dict[str, Any]]:
    config = cls.Config if isinstance(cls, type) and issubclass(cls, Hook) else HookConfig
    branch = config.model_json_schema(ref_template="#/$defs/{model}")
    branch["properties"] = {"type": {"enum": names}, **branch.get("properties", {})}
    branch["required"] = ["type", *branch.get("required", [])]
    return names, branch
