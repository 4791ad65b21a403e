"""Tests of the order of the layers, and of files that extend others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hookbus import HookBus, Trainer
from hookbus._config.layers import MAX_FILES
from hookbus._config.load import load_config
from hookbus.checkpoint.state import hash_config
from hookbus.errors import ConfigError
from hookbus.writers import redact_config

if TYPE_CHECKING:
    from tests.conftest import Project


def get_problems(source: Any, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    return caught.value.problems


class TestOrder:
    def test_each_layer_overrides_those_before_it(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        def write(layer: int, form: str) -> str:
            return "".join(form.format(key, layer) for key in range(layer, 7))

        project.write("[tool.hookbus.model]\ntype = 'x'\n" + write(1, "p{} = {}\n"), "pyproject.toml")
        for key in range(2, 7):
            monkeypatch.setenv(f"HOOKBUS_MODEL__P{key}", "2")
        project.write("model:\n" + write(3, "  p{}: {}\n"), "first.yaml")
        project.write("model:\n" + write(4, "  p{}: {}\n"), "second.yaml")
        project.write("defaults: [first.yaml, second.yaml]\nmodel:\n" + write(5, "  p{}: {}\n"))
        model = load_config("run.yaml", ["model.p6=6"]).model
        assert model is not None
        assert model.settings == {f"p{key}": key for key in range(1, 7)}

    def test_trainer_and_bus_use_the_same_settings(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOOKBUS_TRAINING__EPOCHS", "4")
        monkeypatch.setenv("HOOKBUS_ORDER", "ascending")
        project.write("hooks: [{type: 'parts:QuietHook', name: q}]\n", "base.yaml")
        project.write(
            "defaults: [base.yaml]\nmodel: {type: 'parts:net'}\ndataset: {type: 'parts:points'}\ndefault_hooks: false\n"
        )
        sources: list[Any] = [load_config("run.yaml"), {"defaults": ["run.yaml"]}]
        for trainer in (Trainer.from_file("run.yaml"), *map(Trainer, sources)):
            assert (trainer.epochs, [*trainer.bus.hooks]) == (4, ["q"])
        assert HookBus.from_file("run.yaml").explain().order == "ascending"

    def test_mapping_extends_files_of_the_current_directory(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOOKBUS_DEVICE", "cpu")
        project.write("seed: 3\norder: ascending\n", "base.yaml")
        config = load_config({"defaults": ["base.yaml"], "order": "nested"})
        assert (config.device, config.seed, config.order) == ("cpu", 3, "nested")

    @pytest.mark.parametrize(
        ("top", "overrides"),
        [
            ("hooks: {acme: null}", ()),
            ("hooks: {acme: {enabled: false}}", ()),
            ("hooks: [{type: acme, enabled: false}]", ()),
            ("seed: 1", ("~hooks.acme",)),
        ],
    )
    @pytest.mark.parametrize("base", ["hooks: {acme: {x: 1}}", "hooks: [acme]", "hooks: {acme: {type: 'no_mod:Hook'}}"])
    def test_hook_of_defaults_that_is_not_installed_can_be_disabled(
        self, project: Project, base: str, top: str, overrides: tuple[str, ...]
    ) -> None:
        project.write(f"{base}\n", "base.yaml")
        project.write(f"defaults: [base.yaml]\n{top}\n")
        config = load_config("run.yaml", overrides)
        assert ([hook["enabled"] for hook in config.hooks], config.build_hooks()) == ([False], [])

    def test_misspelled_hook_is_not_disabled(self, project: Project) -> None:
        project.write("hooks: {acme: null}\n")
        assert "No installed package publishes the hook 'acme'" in get_problems("run.yaml")[0]
        assert "No installed package publishes the hook 'acme'" in get_problems({}, "hooks.acme.enabled=false")[0]

    def test_alias_of_a_key_is_resolved_in_each_layer(self, project: Project) -> None:
        project.write("experiment_dir: a\n", "base.yaml")
        assert load_config({"defaults": ["base.yaml"]}).work_dir == "a"
        assert load_config({"defaults": ["base.yaml"], "work_dir": "b"}).work_dir == "b"


class TestFiles:
    def test_paths_are_relative_to_the_file_that_names_them(self, project: Project) -> None:
        (project.path / "a" / "b").mkdir(parents=True)
        project.write("defaults: [b/two.yaml]\nseed: 1\n", "a/one.yaml")
        project.write("defaults: [../three.yaml]\nseed: 2\nwork_dir: runs/two\n", "a/b/two.yaml")
        project.write("seed: 3\ndevice: cpu\n", "a/three.yaml")
        config = load_config(project.write("defaults: [a/one.yaml]\n"))
        # The values are not: a work directory is relative to the current directory, whichever file sets it.
        assert (config.seed, config.device, config.work_dir) == (1, "cpu", "runs/two")

    def test_path_may_be_absolute_and_contain_a_variable(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ORGANIZATION", str(project.path))
        project.write("seed: ${env:SEED_OF_ALL,8}\n", "base.yaml")
        assert load_config({"defaults": [str(project.path / "base.yaml")]}).seed == 8
        assert load_config({"defaults": ["${env:ORGANIZATION}/base.yaml"]}).seed == 8

    def test_table_and_variable_may_name_files(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        (project.path / "inner").mkdir()
        project.write("seed: 1\ndevice: a\norder: ascending\n", "table.yaml")
        project.write("[tool.hookbus]\ndefaults = ['table.yaml']\ndevice = 'b'\n", "pyproject.toml")
        project.write("seed: 2\n", "variable.yaml")
        monkeypatch.setenv("HOOKBUS_DEFAULTS", "[variable.yaml]")
        config = load_config(project.write("work_dir: x\n", "inner/run.yaml"))
        assert (config.seed, config.device, config.order) == (2, "b", "ascending")

    def test_file_may_be_extended_by_two_files(self, project: Project) -> None:
        project.write("seed: 1\n", "base.yaml")
        project.write("defaults: [base.yaml]\ndevice: cpu\n", "left.yaml")
        project.write("defaults: [base.yaml]\nseed: 2\n", "right.yaml")
        config = load_config({"defaults": ["left.yaml", "right.yaml"]})
        assert (config.seed, config.device) == (2, "cpu")

    def test_cycle_is_an_error(self, project: Project) -> None:
        project.write("defaults: [./run.yaml]\n", "base.yaml")
        assert get_problems(project.write("seed: 1\ndefaults: [base.yaml]\n")) == [
            "base.yaml:1:12: defaults.0: the file extends itself: run.yaml -> base.yaml -> run.yaml. Remove it."
        ]

    def test_number_of_files_is_limited(self, project: Project) -> None:
        project.write("seed: 1\n", "f0.yaml")
        for level in range(1, 8):  # 2**7 files, and those on the way to them
            project.write(f"defaults: [f{level - 1}.yaml, f{level - 1}.yaml]\n", f"f{level}.yaml")
        problems = get_problems({"defaults": ["f7.yaml"]})
        assert len(set(problems)) > 0
        assert all(problem.endswith(f"more than {MAX_FILES} files of defaults. Name fewer.") for problem in problems)

    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            ("[3]", "run.yaml:1:11: defaults: should be a file, or a list such as [base.yaml], got [3]."),
            ("true", "run.yaml:1:11: defaults: should be a file, or a list such as [base.yaml], got true."),
            ("null", "run.yaml:1:11: defaults: should be a file, or a list such as [base.yaml], got null."),
            (
                "no.yaml",
                "run.yaml:1:11: defaults.0: no.yaml: the file cannot be read: No such file or directory.",
            ),
            (
                "[no.yaml]",
                "run.yaml:1:12: defaults.0: no.yaml: the file cannot be read: No such file or directory.",
            ),
            (
                "['${env:UNSET_X}/a']",
                "run.yaml:1:12: defaults.0: the environment variable UNSET_X is not set. Set it, or write "
                "${env:UNSET_X,default}.",
            ),
            ("[list.yaml]", "list.yaml:1:1: a file of defaults should be a mapping of keys to values."),
            ("[empty.yaml]", "empty.yaml:1:1: the file is empty."),
            ("[invalid.yaml]", "invalid.yaml:1:8: invalid YAML: mapping values are not allowed here."),
        ],
    )
    def test_invalid_name_or_file_is_an_error(self, project: Project, value: str, problem: str) -> None:
        for name, text in (("list", "- seed\n"), ("empty", "# nothing\n"), ("invalid", "seed: a: b\n")):
            project.write(text, f"{name}.yaml")
        assert get_problems(project.write(f"defaults: {value}\n")) == [problem]

    def test_override_of_the_files_is_an_error(self, project: Project) -> None:
        assert get_problems(project.write("seed: 1\n"), "defaults=[a.yaml]") == [
            "command line: defaults=[a.yaml]: defaults: cannot be set on the command line. Name the files in the run "
            "file."
        ]


class TestErrors:
    def test_errors_of_all_layers_name_their_place(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        project.write("[tool.hookbus]\nseed = 'x'\nhooks = [{type = 'parts:ProbeHook', ratoi = 1}]\n", "pyproject.toml")
        monkeypatch.setenv("HOOKBUS_TRAINING__EPOCHS", "none")
        monkeypatch.setenv("HOOKBUS_TRAINNG__EPOCHS", "3")
        project.write("device: 1\nloader:\n  num_wrokers: 2\n", "base.yaml")
        project.write("defaults: [base.yaml]\norder: down\n")
        assert get_problems("run.yaml", "default_hooks=3") == [
            "run.yaml:2:8: order: should be 'nested' or 'ascending', got 'down'.",
            "pyproject.toml: [tool.hookbus] seed: should be a valid integer, got 'x'.",
            "base.yaml:3:3: loader.num_wrokers: unknown key. Did you mean 'num_workers'?",
            "HOOKBUS_TRAINING__EPOCHS: training.epochs: should be a valid integer, got 'none'.",
            "base.yaml:1:9: device: should be a valid string, got 1.",
            "command line: default_hooks=3: default_hooks: should be a valid boolean, got 3.",
            "HOOKBUS_TRAINNG__EPOCHS: trainng: unknown key. Did you mean 'training'?",
            "pyproject.toml: [tool.hookbus] hooks.0.ratoi: unknown key. Did you mean 'ratio'?",
        ]

    def test_replaced_value_is_not_validated(self, project: Project) -> None:
        project.write("seed: x\n", "base.yaml")
        assert load_config({"defaults": ["base.yaml"], "seed": 2}).seed == 2


class TestWrittenFile:
    def test_it_contains_the_merged_settings(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOOKBUS_WORK_DIR", "runs/v")
        monkeypatch.setenv("HOOKBUS_MODEL__API_KEY", "h4shh4sh")
        project.write("model: {type: 'parts:net', token: t0k3n-0f-b4se}\nhooks: ['parts:QuietHook']\n", "base.yaml")
        config = load_config(project.write("defaults: [base.yaml]\nseed: 2\n"))
        text = config.to_yaml()
        assert "work_dir: runs/v  # from the environment: HOOKBUS_WORK_DIR\n" in text
        assert "  api_key: ${env:HOOKBUS_MODEL__API_KEY}\n" in text
        assert "  token: '***'  # redacted: set in base.yaml:1:35\n" in text
        assert "h4shh4sh" not in text

    def test_it_is_loaded_without_the_defaults(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        project.write("[tool.hookbus]\nhooks = ['parts:QuietHook']\noptimizer.weight_decay = 1\n", "pyproject.toml")
        project.write("optimizer: {type: SGD, lr: 0.1}\n", "base.yaml")
        config = load_config(project.write("defaults: [base.yaml]\nhooks: [{type: 'parts:ProbeHook'}]\n"))
        project.write(config.to_yaml(), "again.yaml")
        (project.path / "base.yaml").unlink()
        project.write("[tool.hookbus]\nhooks = ['parts:KeywordHook']\noptimizer.momentum = 1\n", "pyproject.toml")
        monkeypatch.setenv("HOOKBUS_OPTIMIZER__NESTEROV", "true")
        assert load_config("again.yaml").model_dump() == config.model_dump()

    def test_its_hash_covers_the_defaults(self, project: Project) -> None:
        run = project.write("defaults: [base.yaml]\n")
        hashes = set()
        for seed in (1, 2):
            project.write(f"seed: {seed}\n", "base.yaml")
            hashes.add(hash_config(redact_config(load_config(run))))
        assert len(hashes) == 2
