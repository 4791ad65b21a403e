"""Tests of the JSON schema of run files."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from pydantic import create_model

from hookbus import Hook, HookConfig
from hookbus._cli.schema import json_schema
from hookbus._config.hooks import HOOKS
from hookbus._config.yaml import parse

if TYPE_CHECKING:
    from tests.conftest import Environment

NAME = "schema_probe"


class Inner(HookConfig):
    size: int = 3


OtherInner = create_model("Inner", __base__=HookConfig, width=(str, ""))
"""Another model with the same name."""


class SchemaProbeHook(Hook):
    class Config(HookConfig):
        interval: int = 1
        inner: Inner = Inner()


class OtherHook(Hook):
    class Config(HookConfig):
        inner: OtherInner = OtherInner()  # type: ignore[valid-type]
        call: Callable[[int], int] | None = None


class KeywordHook(Hook):
    def __init__(self, interval: int = 50) -> None:
        self.interval = interval


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    before = dict(HOOKS)
    HOOKS.register(NAME)(SchemaProbeHook)
    HOOKS.register("other")(OtherHook)
    HOOKS.register("keyword")(KeywordHook)
    schema, problems = json_schema()
    HOOKS.clear()
    HOOKS.update(before)
    assert problems == []
    return Draft202012Validator(schema)


def errors(validator: Draft202012Validator, text: str) -> list[Any]:
    document = parse(textwrap.dedent(text), "f")
    assert document.problems == []
    return list(validator.iter_errors(document.data))


@pytest.mark.slow
def test_schema_is_valid(validator: Draft202012Validator) -> None:
    Draft202012Validator.check_schema(validator.schema)


GOOD = [
    "{}",
    "experiment_dir: runs/x",
    """
    work_dir: runs/x
    seed: 3
    model: {type: cnn, width: 3}
    dataset: {type: digits, batch_size: 64}
    optimizer: {type: AdamW, lr: 1e-3}
    loss: cross_entropy
    metrics: [accuracy]
    scheduler: {type: StepLR, step_size: 2}
    loader: {num_workers: 2}
    training: {epochs: 20, accumulate: 2}
    load_from: start.pth
    hooks:
      - {type: schema_probe, interval: 3, priority: LOW, when: every(3)}
      - schema_probe
      - "my_module:MyHook"
      - {type: "my_module:MyHook", anything: [1]}
    """,
    "load_from: {path: x, weights: averaged}",
    "loss: {type: mse_loss, reduction: sum}",
    "metrics: {top1: accuracy}",
    "hooks: {schema_probe: {interval: 3}, mine: {type: schema_probe}, other: null}",
    "hooks: [{type: schema_probe, inner: {size: 3}}, {type: other, inner: {width: x}}]",
    "hooks: [{type: keyword, interval: 3, name: k}]",
    "hooks: [{type: schema_probe, priority: 3}]",
    "hooks:",
    "seed: ${env:SEED}",
    "{order: '${env:ORDER}', training: {epochs: '${env:EPOCHS,3}', clip_grad_norm: '${env:NORM}'}}",
    "hooks: [{type: schema_probe, interval: '${env:N}', priority: '${env:P}', inner: {size: '${env:N}'}}]",
    "hooks: {schema_probe: {interval: '${env:N}'}}",
    "{defaults: [base.yaml], model: {width: 3}, training: {accumulate: 2}, load_from: {weights: raw}}",
    "defaults: base.yaml",
    "defaults: false",
    "optimizer: {lr: 0.1}",
    "loss: {reduction: sum}",
    "{defaults: false, training: {epochs: 1, iterations: null, tokens: null}, load_from: null, scheduler: null}",
    "hooks: {schema_probe: null, other: {priority: 3}}",
]
BAD = [
    "sead: 1",
    "seed: x",
    "model: cnn",
    "model: {width: 3}",
    "training: {epochs: 0}",
    "training: {epochs: 1, iterations: 1}",
    "training: {accumulate: 1}",
    "order: nestd",
    "load_from: {weights: raw}",
    "hooks: 5",
    "hooks: [5]",
    "hooks: [{interval: 3}]",
    "hooks: [{type: schema_prob}]",
    "hooks: [schema_prob]",
    "hooks: [{type: schema_probe, intervall: 3}]",
    "hooks: [{type: schema_probe, interval: x}]",
    "hooks: [{type: schema_probe, priority: TOP}]",
    "hooks: [{type: schema_probe, inner: {width: x}}]",
    "hooks: [{type: other, inner: {size: 3}}]",
    "hooks: [{type: keyword, intervall: 3}]",
    "hooks: {schema_probe: {intervall: 3}}",
    "hooks: {mine: {interval: 3}}",
    "hooks: {mine: null}",
    "seed: ${SEED}",
    "training: ${env:TRAINING}",
    "defaults: true",
    "defaults: [3]",
    "{defaults: false, training: {accumulate: 2}}",
    "training: {epochs: null}",
    "{defaults: [base.yaml], training: {epochs: 0}}",
]


@pytest.mark.parametrize("text", GOOD)
def test_valid_run_file_is_accepted(validator: Draft202012Validator, text: str) -> None:
    assert errors(validator, text) == []


@pytest.mark.parametrize("text", BAD)
def test_invalid_run_file_is_rejected(validator: Draft202012Validator, text: str) -> None:
    assert errors(validator, text) != []


PLACES = [
    ("hooks: [other, {type: schema_probe, intervall: 3}]", "hooks.1", "'intervall' was unexpected"),
    ("hooks: [other, {type: schema_probe, interval: x}]", "hooks.1.interval", "'x' is not of type 'integer'"),
    ("hooks: [other, {type: schema_prob}]", "hooks.1.type", "'schema_prob' is not one of ["),
    ("hooks: [other, schema_prob]", "hooks.1", "'schema_prob' is not one of ["),
    ("hooks: [other, {interval: 3}]", "hooks.1", "'type' is a required property"),
    ("hooks: [other, 5]", "hooks.1", "5 is not of type 'object'"),
    ("hooks: [{type: schema_probe, inner: {size: x}}]", "hooks.0.inner.size", "'x' is not of type 'integer'"),
    ("hooks: [{type: schema_probe, on_error: rais}]", "hooks.0.on_error", "'rais' is not one of ["),
    ("hooks: {other: null, schema_probe: {intervall: 3}}", "hooks.schema_probe", "'intervall' was unexpected"),
    ("hooks: {schema_probe: {interval: x}}", "hooks.schema_probe.interval", "'x' is not of type 'integer'"),
    ("hooks: {mine: {type: schema_probe, interval: x}}", "hooks.mine.interval", "'x' is not of type 'integer'"),
    ("hooks: {mine: {type: schema_prob}}", "hooks.mine.type", "'schema_prob' is not one of ["),
    ("hooks: {schema_prob: {interval: 3}}", "hooks.schema_prob", "'type' is a required property"),
    ("hooks: {mine: null}", "hooks.mine", "None is not of type 'object'"),
    ("hooks: 5", "hooks", "5 is not of type 'array', 'object', 'null'"),
    ("sead: 1", "", "'sead' was unexpected"),
    ("model: cnn", "model", "'cnn' is not of type 'object', 'null'"),
    ("model: {width: 3}", "model", "'type' is a required property"),
    ("metrics: [accuracy, 3]", "metrics.1", "3 is not of type 'string'"),
    ("metrics: {top1: 3}", "metrics.top1", "3 is not of type 'string'"),
    ("training: {epochs: 0}", "training.epochs", "0 is less than the minimum of 1"),
    ("load_from: {path: x, weights: avg}", "load_from.weights", "'avg' is not one of ['raw', 'averaged']"),
    ("defaults: [3]", "defaults.0", "3 is not of type 'string'"),
]
"""Run files with one error, its path, and a part of its message."""


@pytest.mark.parametrize(("text", "place", "message"), PLACES)
def test_error_is_located_at_the_wrong_value(
    validator: Draft202012Validator, text: str, place: str, message: str
) -> None:
    (error,) = errors(validator, text)
    assert (".".join(map(str, error.absolute_path)), error.context) == (place, [])
    assert message in error.message
    assert best_match([error]) is error


def test_type_selects_the_settings(validator: Draft202012Validator) -> None:
    definitions = validator.schema["$defs"]
    branches = {branch["then"]["$ref"]: branch["if"] for branch in definitions["hook"]["allOf"]}
    names = ["schema_probe", "other", "keyword"]
    for name in names:
        condition = branches[f"#/$defs/settings.{name}"]
        assert condition["required"] == ["type"]
        assert name in condition["properties"]["type"]["enum"]


def test_every_section_has_a_description(validator: Draft202012Validator) -> None:
    undescribed = [name for name, section in validator.schema["properties"].items() if not section.get("description")]
    assert undescribed == []


@pytest.fixture(scope="module")
def installed(environment: Environment) -> Any:
    """Return the schema and the errors in an environment with packages."""
    script = "from hookbus._cli.schema import json_schema\nanswer = json_schema()"
    blocked = {"HOOKBUS_BLOCK": "killing,leaving", "MARKER": str(environment.path / "schema")}
    return environment.answer(script, **blocked)


@pytest.mark.slow
def test_schema_contains_all_names_of_installed_hooks(installed: Any) -> None:
    schema, _ = installed
    greet = schema["$defs"]["settings.greet"]
    assert greet["properties"]["type"]["enum"] == ["greet", "GreetHook", "acme-hooks/greet", "acme-hooks/GreetHook"]
    assert greet["properties"]["text"]["type"] == "string"
    check = Draft202012Validator(schema).is_valid
    assert check({"hooks": [{"type": "GreetHook", "text": "hi"}]})
    assert not check({"hooks": [{"type": "GreetHook", "txt": "hi"}]})


def test_schema_contains_full_names_of_duplicates(installed: Any) -> None:
    check = Draft202012Validator(installed[0]).is_valid
    assert check({"hooks": ["twin-one/twin", {"type": "twin-two/twin"}]})
    assert not check({"hooks": ["twin"]})


def test_broken_hooks_are_omitted_and_reported(installed: Any) -> None:
    schema, problems = installed
    assert len(problems) == 3
    for problem, start in zip(
        problems, ("broken-hooks 0.3 publishes", "'odd-hooks/odd': should", "tomorrow-hooks 5.0 requires"), strict=True
    ):
        assert problem.startswith(start)
    assert not Draft202012Validator(schema).is_valid({"hooks": ["broken"]})


def test_blocked_hooks_are_omitted(installed: Any) -> None:
    assert "settings.killing" not in installed[0]["$defs"]
