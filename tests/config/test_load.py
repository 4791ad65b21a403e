"""Tests of run files: accepted content and error messages."""

from __future__ import annotations

import copy
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookbus._config.load import load_config, parse_config
from hookbus._config.models import RunConfig
from hookbus._config.reading import MAX_FILE_SIZE, load_document
from hookbus.errors import ConfigError

if TYPE_CHECKING:
    from tests.conftest import Project

EXAMPLE = """
    # an example with everything
    work_dir: runs/example
    seed: 3
    model: {type: "parts:net", width: 16}
    dataset: {type: "parts:points", batch_size: 8}
    optimizer: {type: SGD, lr: 1e-3, momentum: 0.9}
    loss: cross_entropy
    metrics: [accuracy]
    scheduler: {type: StepLR, step_size: 2}
    loader: {num_workers: 0, shuffle: false}
    training: {epochs: 5, accumulate: 2, precision: bf16, clip_grad_norm: 1}
    device: cpu
    resume: auto
    load_from: start.pth
    order: ascending
    default_hooks: false
    hooks:
      - {type: "parts:ProbeHook", interval: 2}
      - "parts:QuietHook"
"""


def load_problems(source: Any, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    return caught.value.problems


def get_reason_of_null() -> str:
    """Return the reason that Python gives for a null byte in a path, which depends on its version."""
    with pytest.raises(ValueError, match="embedded null") as caught:
        os.open("\0", os.O_RDONLY)
    return str(caught.value)


class TestReading:
    def test_file_is_loaded_with_all_sections(self, project: Project) -> None:
        config = load_config(project.write(EXAMPLE))
        assert config.optimizer.settings == {"lr": 0.001, "momentum": 0.9}
        assert config.training is not None
        assert (config.training.epochs, config.training.precision, config.training.clip_grad_norm) == (5, "bf16", 1.0)
        assert config.load_from is not None
        assert (config.load_from.path, config.load_from.weights) == ("start.pth", "raw")
        assert (config.seed, config.order, config.default_hooks, config.resume) == (3, "ascending", False, "auto")
        assert [type(hook).__name__ for hook in config.build_hooks()] == ["ProbeHook", "QuietHook"]

    def test_missing_keys_have_defaults(self, project: Project) -> None:
        config = load_config(project.write("seed: 0\n"))
        assert config.model_dump() == RunConfig().model_dump()
        assert (config.optimizer.type, config.optimizer.settings) == ("AdamW", {"lr": 0.001})
        assert (config.loss, config.work_dir, config.hooks) == ("cross_entropy", "runs/train", [])

    def test_experiment_dir_is_an_alias_of_work_dir(self, project: Project) -> None:
        assert load_config(project.write("experiment_dir: runs/x\n")).work_dir == "runs/x"
        assert load_config(project.write("experiment_dir: runs/x\n"), ["work_dir=runs/y"]).work_dir == "runs/y"

    def test_mapping_is_loaded_like_a_file_and_not_modified(self, project: Project) -> None:
        source = {
            "experiment_dir": Path("runs/x"),
            "metrics": ("accuracy",),
            "hooks": {"a": {"type": "parts:QuietHook"}},
        }
        before = copy.deepcopy(source)
        config = load_config(source, ["hooks.a.priority=3", "seed=4"])
        assert source == before
        assert (config.work_dir, config.metrics, config.seed) == ("runs/x", ["accuracy"], 4)
        assert config.hooks == [{"type": "parts:QuietHook", "name": "a", "priority": 3}]

    def test_byte_order_mark_and_crlf_are_accepted(self, project: Project) -> None:
        (project.path / "run.yaml").write_bytes(b"\xef\xbb\xbfseed: 1\r\ndevice: cpu\r\n")
        assert load_config("run.yaml").device == "cpu"

    def test_configuration_is_frozen(self) -> None:
        with pytest.raises(ValueError, match="frozen"):
            RunConfig().seed = 3  # type: ignore[misc]


class TestErrors:
    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("sead: 1", "1:1: sead: unknown key. Did you mean 'seed'?"),
            ("seed: x", "1:7: seed: should be a valid integer, got 'x'."),
            ("seed: 1.5", "1:7: seed: should be a valid integer, got 1.5."),
            ("seed: '1'", "1:7: seed: should be a valid integer, got '1'."),
            ("seed: true", "1:7: seed: should be a valid integer, got true."),
            ("seed: -1", "1:7: seed: should be greater than or equal to 0, got -1."),
            ("seed: .nan", "1:7: seed: should be a valid integer, got nan."),
            (
                "seed: !secret x",
                "1:7: seed: unsupported tag !secret. Remove it: a run file contains plain YAML.",
            ),
            ("seed:\n  - 1", "2:3: seed: should be a valid integer, got [1]."),
            ("work_dir:", "1:10: work_dir: should be a valid string, got null."),
            ("work_dir:\n\n# hooks\nhooks: []", "1:10: work_dir: should be a valid string, got null."),
            ("experiment_dir: 3", "1:17: work_dir: should be a valid string, got 3."),
            ("model: cnn", "1:8: model: should be a mapping, such as {type: cnn}, got 'cnn'."),
            ("model: {width: 3}", "1:8: model.type: required, but missing."),
            ("model:\n  type: 3", "2:9: model.type: should be a valid string, got 3."),
            ("loss: 5", "1:7: loss: should be a valid string or a mapping, got 5."),
            ("scheduler: {T_max: 3}", "1:12: scheduler.type: required, but missing."),
            ("metrics: 5", "1:10: metrics: should be a list or a mapping, got 5."),
            ("metrics: [1]", "1:11: metrics.0: should be a valid string, got 1."),
            ("training: {epochs: 0}", "1:20: training.epochs: should be greater than or equal to 1, got 0."),
            (
                "training: {epochs: 1, iterations: 1}",
                "1:11: training: exactly one limit is required. Set one of epochs, iterations and tokens.",
            ),
            (
                "training: {}",
                "1:11: training: exactly one limit is required. Set one of epochs, iterations and tokens.",
            ),
            ("training: {seed: 1}", "1:12: training.seed: unknown key. `seed` belongs at the top level."),
            ("epochs: 1", "1:1: epochs: unknown key. `epochs` belongs in `training`."),
            ("training: {epoch: 1}", "1:12: training.epoch: unknown key. Did you mean 'epochs'?"),
            ("order: nestd", "1:8: order: should be 'nested' or 'ascending', got 'nestd'."),
            ("order: 2", "1:8: order: should be 'nested' or 'ascending', got 2."),
            ("resume: true", "1:9: resume: should be auto, never or the path of a checkpoint, got true."),
            ("resume: ''", "1:9: resume: should be auto, never or the path of a checkpoint, got ''."),
            ('work_dir: "\\0"', "1:11: work_dir: invalid character U+0000, which no file name can contain. Remove it."),
            (
                'experiment_dir: "\\0"',
                "1:17: experiment_dir: invalid character U+0000, which no file name can contain. Remove it.",
            ),
            (
                'work_dir: "\\ud800"',
                "1:11: work_dir: invalid character U+D800, which no file name can contain. Remove it.",
            ),
            ('"\\0": 1', "1:1: invalid character U+0000, which no file name can contain. Remove it."),
            ("work_dir: ''", "1:11: work_dir: should have at least 1 character, got ''."),
            ("load_from: ''", "1:12: load_from: should have at least 1 character, got ''."),
            ("optimizer: Adam", "1:12: optimizer: should be a mapping, such as {type: Adam}, got 'Adam'."),
            ("metrics: acc", "1:10: metrics: should be a list, such as [acc], or a mapping, got 'acc'."),
            ("load_from: 3", "1:12: load_from: should be a path, or a mapping with path and weights, got 3."),
            ("load_from: {path: x, weight: raw}", "1:22: load_from.weight: unknown key. Did you mean 'weights'?"),
            (
                "hooks: 5",
                "1:8: hooks: should be a list, such as [logger], or a mapping, such as {logger: {priority: 50}}, "
                "got 5.",
            ),
            (
                "hooks: ema",
                "1:8: hooks: should be a list, such as [ema], or a mapping, such as {ema: {priority: 50}}, "
                "got 'ema'.",
            ),
            ("hooks: [5]", "1:9: hooks.0: should be a mapping, got 5."),
            ("hooks:\n  -", "2:4: hooks.0: should be a mapping, got null."),
            ("hooks: [{interval: 2}]", "1:9: hooks.0.type: required, but missing."),
            (
                "hooks: [{ema: {momentum: 0.9}}]",
                "1:9: hooks.0.type: required, but missing. In a list, write {type: ema, momentum: ...}.",
            ),
            ("hooks: [{typ: a}]", "1:9: hooks.0.type: required, but missing. Is 'typ' a misspelling of it?"),
            ("model: {tpye: a}", "1:8: model.type: required, but missing. Is 'tpye' a misspelling of it?"),
            ("hooks: [{type: 5}]", "1:16: hooks.0.type: should be a name, got 5."),
            ("hooks:\n  one: 5", "2:8: hooks.one: should be a mapping, got 5."),
            ("- seed", "1:1: a run file should be a mapping of keys to values."),
            ("seed", "1:1: a run file should be a mapping of keys to values."),
            ("", "1:1: the file is empty."),
        ],
    )  # fmt: skip
    def test_error_has_a_location(self, project: Project, text: str, problem: str) -> None:
        assert load_problems(project.write(text)) == [f"run.yaml:{problem}"]

    @pytest.mark.parametrize(
        ("setting", "problem"),
        [
            ("interval: 0", "interval: should be greater than or equal to 1, got 0."),
            ("interval: x", "interval: should be a valid integer, got 'x'."),
            ("intervall: 2", "intervall: unknown key. Did you mean 'interval'?"),
            ("tags: [1]", "tags.0: should be a valid string, got 1."),
            ("priority: 1.5", "priority: should be a valid integer, got 1.5."),
            ("enabled: maybe", "enabled: should be a valid boolean, got 'maybe'."),
            ("frequency: 0", "frequency: should be greater than or equal to 1, got 0."),
            ("on_error: ignore", "on_error: should be 'raise', 'warn' or 'disable', got 'ignore'."),
        ],
    )
    def test_error_in_hook_settings_has_a_location(self, project: Project, setting: str, problem: str) -> None:
        line = f"    {setting}"
        text = f"hooks:\n  - type: 'parts:ProbeHook'\n{line}\n"
        value = setting.partition(": ")[2]
        column = 5 if "unknown" in problem else line.index(value) + 1 + (1 if value.startswith("[") else 0)
        assert load_problems(project.write(text)) == [f"run.yaml:3:{column}: hooks.0.{problem}"]
        named = f"hooks:\n  mine:\n    type: 'parts:ProbeHook'\n{line}\n"
        assert load_problems(project.write(named)) == [f"run.yaml:4:{column}: hooks.mine.{problem}"]

    def test_invalid_priority_level_or_schedule_is_an_error(self, project: Project) -> None:
        text = "hooks:\n  - {type: 'parts:ProbeHook', priority: TOP, when: evry(3)}\n"
        level, schedule = load_problems(project.write(text))
        assert level.startswith(
            "run.yaml:2:41: hooks.0.priority: unknown priority level, got 'TOP'. Available: ABOVE_NORMAL, "
        )
        assert schedule.startswith("run.yaml:2:52: hooks.0.when: invalid schedule, got 'evry(3)'")

    def test_all_errors_are_listed_in_file_order(self, project: Project) -> None:
        text = """\
            hooks:
              - {type: "parts:ProbeHook", interval: 0}
              - 5
              - {type: "parts:NoHook"}
              - {type: "parts:RaisingHook"}
            seed: x
            seed: 2
            modle: {}
            training: {epochs: a, accumulate: b}
            device: !no x
        """
        lines = [int(problem.split(":")[1]) for problem in load_problems(project.write(text))]
        assert lines == [2, 3, 4, 5, 6, 7, 8, 9, 9, 10]

    def test_errors_in_overrides_are_listed_last(self, project: Project) -> None:
        assert load_problems(project.write("seed: x\n"), "order=x", "y") == [
            "run.yaml:1:7: seed: should be a valid integer, got 'x'.",
            "command line: y: invalid override. Write key=value to set a key, or ~key to delete it.",
            "command line: order=x: order: should be 'nested' or 'ascending', got 'x'.",
        ]

    def test_work_dir_and_its_alias_are_mutually_exclusive(self, project: Project) -> None:
        assert load_problems(project.write("experiment_dir: a\nwork_dir: b\n")) == [
            "run.yaml:1:1: experiment_dir: alias of work_dir, which is also set. Remove one of the two keys."
        ]

    def test_exception_in_hook_constructor_is_an_error_with_its_cause(self, project: Project) -> None:
        (problem,) = load_problems(project.write("hooks:\n  - type: 'parts:RaisingHook'\n"))
        why = r"RaisingHook: cannot be built: ValueError: no disk there \(.*parts\.py, line \d+\)\."
        assert re.fullmatch(rf"run\.yaml:2:5: hooks\.0: {why}", problem)

    @pytest.mark.parametrize(
        ("text", "place"),
        [
            ("hooks:\n  - type: 'parts:Nothing'\n", "2:11: hooks.0.type"),
            ("hooks:\n  - parts:Nothing\n", "2:5: hooks.0"),
            ("hooks:\n  mine:\n    type: 'parts:Nothing'\n", "3:11: hooks.mine.type"),
            ("hooks:\n  'parts:Nothing':\n    interval: 2\n", "2:3: hooks.parts:Nothing"),
        ],
    )
    def test_unknown_hook_is_reported_at_its_type(self, project: Project, text: str, place: str) -> None:
        (problem,) = load_problems(project.write(text))
        reason = "'parts:Nothing' cannot be imported: parts has no attribute 'Nothing'."
        assert problem == f"run.yaml:{place}: hook: {reason}"

    def test_duplicate_hook_name_is_an_error(self, project: Project) -> None:
        text = "hooks:\n  - 'parts:QuietHook'\n  - {type: 'parts:ProbeHook', name: quiet}\n"
        assert load_problems(project.write(text)) == [
            "run.yaml:3:5: hooks.1: duplicate hook name 'quiet'. Set a unique name."
        ]

    def test_name_of_a_disabled_hook_is_available(self, project: Project) -> None:
        text = "hooks:\n  - {type: 'parts:QuietHook', enabled: false}\n  - 'parts:QuietHook'\n"
        assert len(load_config(project.write(text)).build_hooks()) == 2

    def test_missing_file_is_an_error(self, project: Project) -> None:
        assert load_problems("nowhere.yaml") == [
            "nowhere.yaml: the run file cannot be read: No such file or directory."
        ]
        assert load_problems(project.path) == [f"{project.path}: the run file cannot be read: is a directory."]

    def test_invalid_utf8_is_an_error(self, project: Project) -> None:
        (project.path / "run.yaml").write_bytes(b"seed: 1\ndevice: caf\xe9 x\n")
        assert load_problems("run.yaml") == [
            "run.yaml:2:12: invalid UTF-8: invalid continuation byte. Save the file as UTF-8."
        ]

    def test_mapping_with_objects_is_an_error(self) -> None:
        (problem,) = load_problems({"model": {"type": "x", "act": [len]}})
        assert problem.startswith("config: model.act.0: should be a built-in type, got <built-in function len>")

    def test_errors_are_ordered_if_the_file_name_has_a_colon(self, project: Project) -> None:
        text = "a: 1\nseed: x\nseed: 2\nb: 1\n"
        problems = load_problems(project.write(text, "a:b.yaml"))
        assert [problem.split(":")[2] for problem in problems] == ["1", "2", "3", "4"]


def test_parse_config_returns_valid_sections_and_errors(project: Project) -> None:
    text = "seed: x\ndevice: cpu\ntraining: 3\nhooks: [5, 'parts:QuietHook']\n"
    config, problems = parse_config(project.write(text))
    assert len(problems) == 3
    assert (config.seed, config.device, config.training) == (0, "cpu", None)
    assert config.hooks == [{"type": "parts:QuietHook"}]
    assert config.is_missing("model")
    assert not config.is_missing("training")


class TestHooks:
    @pytest.mark.parametrize(
        "written",
        [
            "['parts:QuietHook']",
            "[{type: 'parts:QuietHook'}]",
            "{'parts:QuietHook': {name: quiet}}",
            "{quiet: {type: 'parts:QuietHook'}}",
        ],
    )
    def test_hooks_are_a_list_or_a_mapping(self, project: Project, written: str) -> None:
        (hook,) = load_config(project.write(f"hooks: {written}\n")).build_hooks()
        assert (type(hook).__name__, hook.name) == ("QuietHook", "quiet")

    @pytest.mark.parametrize("written", ["", "[]", "{}", "null"])
    def test_hooks_may_be_empty(self, project: Project, written: str) -> None:
        assert load_config(project.write(f"hooks: {written}\n")).build_hooks() == []

    def test_null_disables_a_hook_of_a_mapping(self, project: Project) -> None:
        config = load_config(project.write("hooks: {'parts:QuietHook': null}\n"))
        assert config.hooks == [{"type": "parts:QuietHook", "enabled": False}]

    def test_disabled_hook_is_built_to_replace_a_default(self, project: Project) -> None:
        (hook,) = load_config(project.write("hooks: [{type: 'parts:QuietHook', enabled: false}]\n")).build_hooks()
        assert hook.config.enabled is False

    def test_common_keys_apply_to_every_hook(self, project: Project) -> None:
        text = """\
            hooks:
              - {type: "parts:ProbeHook", name: a, priority: VERY_HIGH, when: "every(3) & between(1, 9)"}
              - {type: "parts:KeywordHook", interval: 3, name: b, priority: 7, frequency: 2}
              - {type: "parts:DictHook", name: c}
              - {type: "parts:AnyHook", name: d, size: 3}
        """
        a, b, c, d = load_config(project.write(text)).build_hooks()
        assert (a.name, a.config.priority, repr(a.config.when)) == ("a", 10, "(every(3) & between(1, 9))")
        assert (b.name, b.interval, b.config.priority, b.config.frequency) == ("b", 3, 7, 2)
        assert (c.name, c.built) == ("c", True)
        assert (d.name, d.settings) == ("d", {"size": 3})

    def test_build_hooks_returns_new_instances(self, project: Project) -> None:
        config = load_config(project.write("hooks: ['parts:QuietHook']\n"))
        assert config.build_hooks()[0] is not config.build_hooks()[0]

    @pytest.mark.slow
    def test_disabled_hook_may_be_missing(self, bare_environment: Any) -> None:
        script = """
            from hookbus._config.load import parse_config
            off = {"type": "EMAHook", "enabled": False}
            answer = [parse_config({"hooks": hooks})[1] for hooks in ([off], {"wandb": None}, {"wandbb": None})]
        """
        published, null, misspelt = bare_environment.answer(script)
        assert published == null == []
        assert "Did you mean 'wandb'" in misspelt[0]

    def test_registration_error_has_a_location(self, project: Project) -> None:
        config = load_config(project.write("seed: 1\nhooks:\n  - {type: 'parts:QuietHook', when: every(2)}\n"))
        with pytest.raises(ConfigError, match="^run.yaml:3:5: hooks.0: hook 'quiet' "):
            config.build_valid_hooks()

    def test_valid_hooks_can_be_registered_on_another_bus(self, project: Project) -> None:
        from hookbus import HookBus

        hooks = load_config(project.write("hooks: ['parts:QuietHook', 'parts:ProbeHook']\n")).build_valid_hooks()
        assert list(HookBus(hooks).hooks) == ["quiet", "probe"]


GUIDE = """
    experiment_dir: experiments/mine
    model: {type: cnn}
    dataset: {type: cifar10}
    training: {epochs: 50}
    hooks:
      - {type: TimeTrackingHook, name: training_timer, frequency: 1, log_to_file: true, log_path: times.log}
      - {type: FeatureMapHook, name: features, frequency: 100, max_features: 16, sample_batch_idx: 0}
      - type: SystemMonitorHook
        name: system_monitor
        frequency: 10
        interval: 2
        track_cpu: true
        track_memory: true
        track_gpu: true
        track_gpu_memory: true
"""
FULL = """
    hooks:
      - {type: CheckpointHook, interval: 1, max_keep_ckpts: 3, save_best: true, best_metric: accuracy, rule: greater}
      - {type: LoggerHook, interval: 50}
      - {type: TensorBoardHook, log_dir: boards, interval: 100, log_graph: true}
      - {type: EvalHook, interval: 1, save_best: true, metric: accuracy}
      - {type: EarlyStoppingHook, monitor: val_loss, patience: 10, mode: min, restore_best_weights: true}
      - {type: EMAHook, momentum: 0.9999, warm_up: 500}
      - {type: VisualizationHook, interval: 500, max_samples: 8, save: true}
"""
DISTRIBUTED = """
    hooks:
      - {type: CheckpointHook, interval: 1, max_keep_ckpts: 3}
      - {type: LoggerHook, interval: 50}
      - {type: DistEvalHook, interval: 1}
      - {type: EMAHook, momentum: 0.9999}
"""
PROFILING = """
    hooks:
      - type: ProfilerHook
        profile_iters: 100
        schedule: {wait: 10, warmup: 10, active: 80}
        record_shapes: true
        profile_memory: true
        export_chrome_trace: true
      - {type: MemoryProfilerHook, interval: 100, warn_threshold: 10.0}
      - {type: IterTimerHook, interval: 50}
"""
GUARDING = """
    hooks:
      - {type: MemoryProfilerHook, interval: 50}
      - {type: CheckInvalidLossHook, interval: 50}
"""


@pytest.mark.parametrize("text", [GUIDE, FULL, DISTRIBUTED, PROFILING, GUARDING])
def test_hooks_of_the_guides_load_if_installed(project: Project, text: str) -> None:
    config, problems = parse_config(project.write(text))
    missing_package = (
        r"run\.yaml:\d+:\d+: hooks\.\d+\.type: The hook '\w+' is not installed\. Run: pip install hookbus-[a-z-]+"
    )
    assert [problem for problem in problems if not re.fullmatch(missing_package, problem)] == []
    assert len(config.hooks) == text.count("type: ") - text.count("type: c")


WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
COMPONENTS = st.dictionaries(
    WORDS.filter(lambda key: key not in ("batch_size", "interval", "monitor")), VALUES, max_size=3
)


def component(name: str, **more: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda settings, own: {**settings, **own, "type": name}, COMPONENTS, st.fixed_dictionaries(more))


PROBES = st.fixed_dictionaries({"type": st.just("parts:ProbeHook"), "tags": st.lists(WORDS), "ratio": st.floats(0, 1)})
SOURCES = st.fixed_dictionaries(
    {},
    optional={
        "work_dir": WORDS.filter(bool),
        "seed": st.integers(0, 2**63 - 1),
        "model": component("net"),
        "dataset": component("points", batch_size=st.integers(1, 100)),
        "optimizer": component("SGD"),
        "loss": st.none() | WORDS | component("CrossEntropyLoss"),
        "metrics": st.none() | st.lists(WORDS) | st.dictionaries(WORDS, WORDS),
        "scheduler": st.none() | component("StepLR", interval=st.sampled_from(["epoch", "step"])),
        "loader": st.fixed_dictionaries({"num_workers": st.integers(0, 8), "pin_memory": st.booleans()}),
        "training": st.fixed_dictionaries({"iterations": st.integers(1), "clip_grad_norm": st.floats(1e-9, 1e9)}),
        "device": WORDS,
        "load_from": st.none() | WORDS.filter(bool),
        "order": st.sampled_from(["nested", "ascending"]),
        "default_hooks": st.booleans(),
        "hooks": st.lists(PROBES).map(lambda hooks: [{**hook, "name": f"hook {i}"} for i, hook in enumerate(hooks)]),
    },
)  # fmt: skip


@pytest.mark.slow
@given(source=SOURCES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
def test_yaml_round_trip_preserves_the_configuration(project: Project, source: Any) -> None:
    config = load_config(source)
    written = project.path / "resolved.yaml"
    written.write_text(config.to_yaml(), encoding="utf-8")
    again = load_config(written)
    assert again.model_dump() == config.model_dump()
    assert again.to_yaml() == config.to_yaml()


def test_resolved_configuration_has_all_keys_in_order(project: Project) -> None:
    config = load_config(project.write(EXAMPLE), ["seed=9", "~hooks.quiet", "hooks.probe.interval=4"])
    text = config.to_yaml()
    assert [line.partition(":")[0] for line in text.splitlines() if line[0] not in " -"] == [
        *RunConfig.model_fields,
        "defaults",
    ]
    assert "seed: 9\n" in text
    assert "hooks:\n- type: parts:ProbeHook\n  interval: 4\n- type: parts:QuietHook\n  enabled: false\n" in text


MISPLACED = """
training: {epochs: 1, work_dir: x}
max_keep_ckpts: 2
callbacks: []
default_hooks: {logger: {interval: 5}}
labels: [a]
hooks:
  mine: {interval: 1, max_keep_ckpts: 2}
  checkpoint: {patience: 3, epochs: 2}
  acme_keys:AcmeHook: {}
  patience: 3
"""


def test_misplaced_keys_of_the_whole_file_are_listed_with_their_place(project: Project) -> None:
    project.write(
        """
        from hookbus import Hook, HookConfig

        class AcmeConfig(HookConfig):
            labels: list[str] = []

        class AcmeHook(Hook):
            Config = AcmeConfig
        """,
        "acme_keys.py",
    )
    with pytest.raises(ConfigError) as caught:
        load_config(project.write(MISPLACED.lstrip()), ["min_delta=0.1"])
    assert [problem.removeprefix("run.yaml:") for problem in caught.value.problems] == [
        "1:23: training.work_dir: unknown key. `work_dir` belongs at the top level.",
        "2:1: max_keep_ckpts: unknown key. `max_keep_ckpts` is a setting of the hook `checkpoint`: write it in hooks.",
        "3:1: callbacks: unknown key. `callbacks` is `hooks` in hookbus.",
        "4:16: default_hooks: should be true or false, got {'logger': {'interval': 5}}. Write the settings of default "
        "hooks in hooks.",
        "5:1: labels: unknown key. `labels` is a setting of the hook `acme_keys:AcmeHook`: write it in hooks.",
        "7:3: hooks.mine: No installed package publishes the hook 'mine'. The name of an entry without `type` is its "
        "type. Its keys are those of `checkpoint`: add `type: checkpoint`.",
        "8:16: hooks.checkpoint.patience: unknown key. `patience` is a setting of the hook `early_stopping`: write it "
        "in hooks.",
        "8:29: hooks.checkpoint.epochs: unknown key. `epochs` belongs in `training`.",
        "10:13: hooks.patience: should be a mapping, got 3. `patience` is a setting of the hook `early_stopping`: "
        "write it in hooks.",
        "command line: min_delta=0.1: min_delta: unknown key. `min_delta` is a setting of the hook `early_stopping`: "
        "write it in hooks.",
    ]


def test_single_hook_instead_of_a_list_of_hooks_is_an_error(project: Project) -> None:
    with pytest.raises(ConfigError, match=r"run.yaml:1:1: hooks: should be a list, such as \[{type: ...}\], got the"):
        load_config(project.write("hooks: {type: checkpoint, interval: 1}\n"))


def get_problems(source: Any, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    return caught.value.problems


class TestFiles:
    def test_file_of_one_mebibyte_is_read(self, project: Project) -> None:
        (project.path / "run.yaml").write_text("seed: 1\n" + "#" * (MAX_FILE_SIZE - 8))
        assert load_document("run.yaml").data == {"seed": 1}

    def test_larger_file_is_refused_before_it_is_parsed(self, project: Project) -> None:
        (project.path / "run.yaml").write_text("[" * (MAX_FILE_SIZE + 1))
        problem = "run.yaml: the run file cannot be read: 1,048,577 bytes, but a run file has at most 1,048,576."
        assert get_problems("run.yaml") == [problem]

    def test_huge_sparse_file_is_refused(self, project: Project) -> None:
        with open(project.path / "run.yaml", "wb") as file:
            file.truncate(2**40)
        assert "1,099,511,627,776 bytes, but" in get_problems("run.yaml")[0]

    def test_fifo_and_device_are_refused_without_waiting(self, project: Project) -> None:
        os.mkfifo(project.path / "run.yaml")
        assert get_problems("run.yaml") == ["run.yaml: the run file cannot be read: not a regular file."]
        assert get_problems("/dev/zero") == ["/dev/zero: the run file cannot be read: not a regular file."]

    def test_symbolic_link_is_followed(self, project: Project) -> None:
        project.write("seed: 3\n")
        (project.path / "link.yaml").symlink_to("run.yaml")
        assert load_config("link.yaml").seed == 3

    @pytest.mark.parametrize(
        ("name", "problem"),
        [
            ("x\0", rf"'x\x00': the run file cannot be read: {get_reason_of_null()}."),
            ("x\x1b[31m", r"'x\x1b[31m': the run file cannot be read: No such file or directory."),
            ("x" * 5000, f"{'x' * 299}…: the run file cannot be read: File name too long."),
        ],
        ids=["nul", "escape", "long"],
    )
    def test_invalid_name_is_an_error(self, project: Project, name: str, problem: str) -> None:
        assert get_problems(name) == [problem]


class TestMappings:
    def test_mapping_that_contains_itself_is_refused(self) -> None:
        source: dict[str, Any] = {}
        source["model"] = source
        assert get_problems(source) == ["config: nested deeper than 60 levels."]

    def test_number_of_values_is_limited(self) -> None:
        assert get_problems({"metrics": ["a"] * 20_000}) == ["config: more than 20000 values."]

    def test_integer_is_limited(self) -> None:
        assert get_problems({"seed": 2**1024}) == ["config: seed: integer of more than 1024 bits."]


class TestManyErrors:
    @pytest.mark.slow
    def test_twenty_thousand_unknown_keys_are_counted(self, project: Project) -> None:
        (project.path / "run.yaml").write_text("".join(f"sead{i}: 1\n" for i in range(19_990)))
        with pytest.raises(ConfigError) as caught:
            load_config("run.yaml")
        lines = str(caught.value).splitlines()
        assert lines[0] == "run.yaml:1:1: sead0: unknown key. Did you mean 'seed'?"
        assert lines[49:] == ["run.yaml:50:1: sead49: unknown key. Did you mean 'seed'?", "and 19,940 more errors."]

    def test_hints_belong_to_the_first_errors_of_the_file(self, project: Project) -> None:
        (project.path / "run.yaml").write_text("".join(f"sead{i}: 1\n" for i in range(60)) + "training: {epoch: 1}\n")
        problems = get_problems("run.yaml")
        assert problems[49].endswith("unknown key. Did you mean 'seed'?")
        assert problems[50:] == [
            *(f"run.yaml:{i + 1}:1: sead{i}: unknown key." for i in range(50, 60)),
            "run.yaml:61:12: training.epoch: unknown key.",
        ]

    def test_unknown_hooks_are_counted(self, project: Project) -> None:
        problems = get_problems({"hooks": [f"nohook{i}" for i in range(60)]})
        assert [problem.partition(".")[0] for problem in problems] == ["config: hooks"] * 60
        assert "Available: " in problems[0]
        assert problems[-1] == (
            "config: hooks.59: No installed package publishes the hook 'nohook59'. Install the package that publishes "
            "it, or use an import string such as my_module:nohook59."
        )

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("seed: " + "x" * 900_000, f"run.yaml:1:7: seed: should be a valid integer, got '{'x' * 79}…'."),
            ("model: [" + "1," * 9_000 + "]", f"run.yaml:1:8: model: should be a mapping, got [{'1, ' * 26}…."),
            (f"? {'k' * 100_000}\n: 1", f"run.yaml:1:3: {'k' * 79}…: unknown key. Available: "),
            ('"a\\e[31m\\n": 1', r"run.yaml:1:1: a\x1b[31m\n: unknown key. Available: "),
            ("hooks: ['" + "a" * 5000 + "']", f"hooks.0: No installed package publishes the hook '{'a' * 79}…'."),
            ("hooks: ['" + "a" * 5000 + ":X']", f"hooks.0: hook: '{'a' * 79}…' cannot be imported: "),
            ("hooks: ['a" + ".a" * 50_000 + ":X']", "cannot be imported: RecursionError"),
            ("order: " + "x" * 5000, f"order: should be 'nested' or 'ascending', got '{'x' * 79}…'."),
        ],
        ids=range(8),
    )  # fmt: skip
    def test_values_are_shortened(self, project: Project, text: str, problem: str) -> None:
        (project.path / "run.yaml").write_text(text)
        (message,) = get_problems("run.yaml")
        assert problem in message
        assert len(message) < 2000
