"""Tests of the construction of a Trainer from a run file."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

from hookbus import Trainer, load_config
from hookbus.errors import ConfigError, PointError
from hookbus.trainer.from_file import is_config, trainer_from_file

if TYPE_CHECKING:
    from tests.conftest import Project

BASE = """
    seed: 5
    model: {type: "parts:net", width: 3}
    dataset: {type: "parts:points", batch_size: 8}
    training: {epochs: 2}
    default_hooks: false
"""


def build_trainer(project: Project, *overrides: str) -> Trainer:
    return trainer_from_file(Trainer, project.write(BASE), overrides)


def get_errors(project: Project, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        build_trainer(project, *overrides)
    return caught.value.problems


class TestBuilding:
    def test_trainer_has_all_objects_of_the_file(self, project: Project) -> None:
        (project.path / "start.pth").touch()
        trainer = build_trainer(
            project,
            "optimizer={type: SGD, lr: 0.5}",
            "scheduler={type: StepLR, step_size: 2, interval: step}",
            "training={iterations: 6, accumulate: 2, clip_grad_norm: 1, validate_first: true}",
            "hooks=['parts:ProbeHook']",
            "work_dir=runs/here",
            "order=ascending",
            "load_from={path: start.pth, weights: averaged, strict: false}",
        )
        assert trainer.model[0].out_features == 3  # type: ignore[index]
        assert trainer.optimizer.param_groups[0]["lr"] == 0.5  # type: ignore[union-attr]
        assert (trainer.epochs, trainer.iterations, trainer.validate_first) == (None, 6, True)
        assert (trainer.steps.accumulate, trainer.steps.clip_grad_norm) == (2, 1.0)
        assert (str(trainer.work_dir), trainer.seed, trainer.bus.explain().order) == ("runs/here", 5, "ascending")
        assert (trainer.load_from, trainer.load_weights, trainer.load_strict) == ("start.pth", "averaged", False)
        assert list(trainer.bus.hooks) == ["probe"]
        assert list(trainer.eval_metrics) == ["accuracy"]
        assert type(trainer.scheduler.scheduler) is torch.optim.lr_scheduler.StepLR
        assert trainer.config.training.iterations == 6  # type: ignore[union-attr]

    def test_continued_run_does_not_require_the_initial_weights(self, project: Project) -> None:
        (project.path / "runs" / "here").mkdir(parents=True)
        options = ("work_dir=runs/here", "load_from=gone.pth", "resume=auto")
        with pytest.raises(ConfigError, match="load_from: gone.pth: file does not exist"):
            build_trainer(project, *options)
        (project.path / "runs" / "here" / "status.json").write_text('{"run": "abc", "outcome": "stopped"}')
        assert build_trainer(project, *options).load_from == "gone.pth"

    def test_seed_makes_the_model_reproducible(self, project: Project) -> None:
        first, second, other = (build_trainer(project, f"seed={seed}").model.state_dict() for seed in (1, 1, 2))
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert not torch.equal(first["0.weight"], other["0.weight"])

    def test_model_receives_shape_and_number_of_classes(self, project: Project) -> None:
        project.write(
            """
            from torch import nn

            from hookbus import Splits

            def three(): return Splits([0] * 4, None, None, (7,), 3)
            def with_shape(num_classes, input_shape): return nn.Linear(input_shape[0], num_classes)
            def without_shape(): return nn.Linear(1, 1)
            """,
            "shaped_models.py",
        )

        def shape(*overrides: str) -> tuple[int, ...]:
            model: Any = build_trainer(project, "dataset.type=shaped_models:three", *overrides).model
            return tuple(model.weight.shape)

        assert shape("model={type: 'shaped_models:with_shape'}") == (3, 7)
        assert shape("model={type: 'shaped_models:with_shape', num_classes: 9}") == (9, 7)
        assert shape("model={type: 'shaped_models:without_shape'}") == (1, 1)

    def test_loss_is_a_class_or_a_function_with_settings(self, project: Project) -> None:
        loss = build_trainer(project, "loss={type: 'torch.nn:CrossEntropyLoss', reduction: sum}").steps.loss_fn
        assert (type(loss), loss.reduction) == (torch.nn.CrossEntropyLoss, "sum")  # type: ignore[union-attr]
        function = build_trainer(project, "loss={type: cross_entropy, label_smoothing: 0.1}").steps.loss_fn
        assert function.keywords == {"label_smoothing": 0.1}  # type: ignore[union-attr]
        assert build_trainer(project, "loss=").steps.loss_fn is None


class TestLoaders:
    SOURCES = """
        import torch
        from torch.utils.data import DataLoader, IterableDataset, TensorDataset

        data = TensorDataset(torch.zeros(10, 4), torch.zeros(10).long())
        ready = DataLoader(data, batch_size=5)

        class Stream(IterableDataset):
            def __iter__(self):
                return iter(data)

        def triple(): return data, data, data
        def mapping(): return {"train": data, "val": {"a": data, "b": data}}
        def alone(): return data
        def stream(): return Stream()
        def loader(): return (ready, ready)
        def empty(): return TensorDataset(torch.zeros(0, 4), torch.zeros(0).long())
        def nothing(): return (None, data)
        def seven(): return [data] * 7
        def odd(): return {"train": data, "evaluation": data}
    """

    @pytest.fixture(autouse=True)
    def sources(self, project: Project) -> None:
        project.write(self.SOURCES, "sources.py")

    def trainer(self, project: Project, name: str, *more: str) -> Trainer:
        return build_trainer(project, f"dataset={{type: 'sources:{name}', batch_size: 4}}", *more)

    def test_only_training_data_are_shuffled(self, project: Project) -> None:
        trainer = self.trainer(project, "triple", "loader.drop_last=true")
        samplers = [type(loader.sampler).__name__ for loader in (trainer.train_loader, trainer.val_loader)]  # type: ignore[union-attr]
        assert samplers == ["RandomSampler", "SequentialSampler"]
        assert [len(loader) for loader in (trainer.train_loader, trainer.val_loader, trainer.test_loader)] == [2, 3, 3]  # type: ignore[arg-type]

    def test_options_are_passed_to_the_loaders(self, project: Project) -> None:
        trainer = self.trainer(project, "triple", "loader={num_workers: 1, prefetch_factor: 3, shuffle: false}")
        loader = trainer.train_loader
        assert isinstance(loader, DataLoader)
        assert (loader.num_workers, loader.prefetch_factor, type(loader.sampler).__name__) == (
            1,
            3,
            "SequentialSampler",
        )

    def test_validation_loaders_keep_their_names(self, project: Project) -> None:
        val = self.trainer(project, "mapping").val_loader
        assert isinstance(val, dict)
        assert {name: len(loader) for name, loader in val.items()} == {"a": 3, "b": 3}

    def test_validation_and_test_data_are_optional(self, project: Project) -> None:
        trainer = self.trainer(project, "alone")
        assert (trainer.val_loader, trainer.test_loader) == (None, None)

    def test_iterable_dataset_is_not_shuffled(self, project: Project) -> None:
        assert [len(batch[1]) for batch in self.trainer(project, "stream").train_loader] == [4, 4, 2]  # type: ignore[union-attr]

    def test_loader_is_used_unchanged(self, project: Project) -> None:
        loader = self.trainer(project, "loader").train_loader
        import sources  # type: ignore[import-not-found]  # importable after the run file was read

        assert loader is sources.ready

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            (
                "empty",
                "dataset: cannot create a loader of its train data: ValueError: num_samples should be a positive",
            ),
            ("nothing", "dataset.type: its training dataset is missing."),
            ("seven", "dataset.type: should return datasets as a tuple (train, val, test), "),
            ("odd", "dataset.type: should return datasets as a tuple (train, val, test), "),
        ],
    )
    def test_invalid_dataset_is_an_error(self, project: Project, name: str, message: str) -> None:
        override = f"dataset={{type: 'sources:{name}', batch_size: 4}}"
        (problem,) = get_errors(project, override)
        assert problem.startswith(f"command line: {override}: {message}")


class TestErrors:
    def test_factory_error_is_reported_at_its_section(self, project: Project) -> None:
        (problem,) = get_errors(project, "model.width=-1")
        assert problem.startswith("run.yaml:3:15: model.type: cannot be built: RuntimeError: Trying to create tensor")
        (problem,) = get_errors(project, "optimizer={type: SGD, lr: -1}")
        assert problem.endswith("optimizer.type: cannot be built: ValueError: Invalid learning rate: -1.")

    def test_factory_error_is_reported_at_the_named_argument(self, project: Project) -> None:
        scheduler = "\n    scheduler:\n      type: CosineAnnealingWarmRestarts\n      T_0: 0\n"
        with pytest.raises(ConfigError) as caught:
            trainer_from_file(Trainer, project.write(BASE + scheduler))
        assert str(caught.value) == (
            "run.yaml:10:8: scheduler.T_0: cannot be built: ValueError: Expected positive integer T_0, but got 0."
        )

    def test_text_that_should_be_a_number_is_located(self, project: Project) -> None:
        override = "optimizer={type: SGD, lr: '0,01'}"
        assert get_errors(project, override) == [
            f"command line: {override}: optimizer.lr: should be a number, got '0,01' (TypeError: '<' not supported "
            "between instances of 'str' and 'float')."
        ]

    @pytest.mark.parametrize("kind", ["{type: CosineAnnealingLR, T_max: 0}", "{type: StepLR, step_size: 0}"])
    def test_failing_scheduler_step_is_an_error(self, project: Project, kind: str) -> None:
        with pytest.raises(ConfigError) as caught:
            trainer_from_file(Trainer, project.write(f"{dedent(BASE)}scheduler: {kind}"))
        (problem,) = caught.value.problems
        assert problem == (
            "run.yaml:7:19: scheduler.type: step 1 of the scheduler raised ZeroDivisionError: integer modulo by zero."
        )

    def test_dry_run_does_not_change_the_scheduler(self, project: Project) -> None:
        trainer = build_trainer(
            project, "optimizer={type: SGD, lr: 0.5}", "scheduler={type: ExponentialLR, gamma: 0.1}"
        )
        assert trainer.optimizer.param_groups[0]["lr"] == 0.5  # type: ignore[union-attr]
        assert trainer.scheduler.scheduler.last_epoch == 0

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("model={type: 'builtins:dict'}", "model.type: should return a torch.nn.Module, got a dict."),
            ("model={type: 'odd:nothing'}", "model.type: should return a torch.nn.Module, got None."),
            ("model={type: 'odd:leave'}", "model.type: cannot be built: SystemExit: 3 ("),
            ("optimizer={type: 'odd:path'}", "optimizer.type: should return an optimizer, got a PosixPath."),
            ("scheduler={type: 'odd:path'}", "scheduler.type: should return a scheduler with a step() method, "),
            ("loss={type: 'pathlib:Path'}", "loss.type: should return a callable, got a PosixPath."),
            ("dataset={type: 'pathlib:Path'}", "dataset.type: its train data should be datasets as "),
            ("dataset={type: 'odd:nothing'}", "dataset.type: should return datasets as "),
            ("dataset={type: 'odd:unsized'}", "dataset: cannot create a loader of its train data: TypeError: "),
            ("hooks=['pathlib:Path']", "hooks.0: 'pathlib:Path': not a hook class. "),
        ],
    )  # fmt: skip
    def test_wrong_return_type_is_an_error(self, project: Project, override: str, message: str) -> None:
        project.write(
            """
            import pathlib, sys

            class Unsized:
                def __getitem__(self, index): return index

            def path(*_): return pathlib.Path()
            def nothing(): pass
            def leave(): sys.exit(3)
            def unsized(): return Unsized()
            """,
            "odd.py",
        )
        (problem,) = get_errors(project, override)
        assert problem.startswith(f"command line: {override}: {message}")

    def test_from_file_lists_all_errors(self, project: Project) -> None:
        with pytest.raises(ConfigError) as caught:
            Trainer.from_file(project.write("seed: x\nmodel: {type: 'parts:nett'}\n"))
        assert len(caught.value.problems) == 4  # including two missing sections

    def test_validation_and_lookup_errors_are_listed_together(self, project: Project) -> None:
        text = """\
            seed: x
            model: {type: "parts:nett"}
            dataset: {type: "parts:points", batch_size: 0}
            training: {epochs: 1}
            loss: nope
            hooks: ["parts:Nobody", 5]
        """
        with pytest.raises(ConfigError) as caught:
            trainer_from_file(Trainer, project.write(text))
        assert [problem.split(": ")[1] for problem in caught.value.problems] == [
            "seed", "model.type", "dataset.batch_size", "loss", "hooks.0", "hooks.1"
        ]  # fmt: skip

    def test_misspelled_type_is_reported_without_the_keys_of_the_default(self, project: Project) -> None:
        (problem,) = get_errors(project, "optimizer={type_x: SGD, momentum: 0.9}")
        assert problem.endswith("optimizer.type_x: unknown key. Did you mean 'type'?")

    def test_key_that_resembles_the_given_type_does_not_hide_others(self, project: Project) -> None:
        problems = get_errors(project, "optimizer={type: SGD, lr: 0.1, typ: 1, momentun: 0.9}")
        assert [problem.split(": ")[-2].split(".")[-1] for problem in problems] == ["typ", "momentun"]

    def test_all_construction_errors_are_listed(self, project: Project) -> None:
        sections = [
            problem.split(": ")[-3]
            for problem in get_errors(project, "model.width=-1", "optimizer.lr=-1", "optimizer.type=SGD")
        ]
        assert len(sections) == 2

    def test_invalid_file_creates_no_files(self, project: Project) -> None:
        get_errors(project, "hooks=[{type: EarlyStopingHook}]", "work_dir=runs/never")
        assert sorted(path.name for path in project.path.iterdir() if path.name != "__pycache__") == [
            "parts.py",
            "run.yaml",
        ]


# -- one broken node -------------------------------------------------------------------------------

FILE: dict[str, Any] = {
    "work_dir": "runs/x",
    "seed": 3,
    "model": {"type": "parts:net", "width": 4},
    "dataset": {"type": "parts:points", "batch_size": 8, "count": 16},
    "optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9},
    "loss": "cross_entropy",
    "metrics": ["accuracy"],
    "scheduler": {"type": "StepLR", "step_size": 2, "interval": "epoch"},
    "loader": {"num_workers": 0, "shuffle": True, "drop_last": False},
    "training": {"epochs": 2, "accumulate": 1, "precision": "fp32", "clip_grad_norm": 1.5},
    "device": "cpu",
    "resume": "never",
    "load_from": {"path": "x.pth", "weights": "raw"},
    "order": "nested",
    "default_hooks": False,
    "hooks": [
        {"type": "parts:ProbeHook", "name": "one", "interval": 2, "ratio": 0.5, "tags": ["a", "b"]},
        {"type": "parts:ProbeHook", "name": "two", "priority": "LOW", "frequency": 3, "on_error": "warn"},
        {"type": "parts:QuietHook", "enabled": True},
    ],
}
FACTORY_KEYS = {"width", "count", "lr", "momentum", "step_size"}
"""Keys that only a factory can validate."""
FREE_TEXT = {"work_dir", "resume", "path", "name"}
REQUIRED = {"model", "dataset", "training"}


@dataclass
class Line:
    """A line of a file with its key and value."""

    indent: str
    key: str
    value: Any
    is_section: bool = False

    def __str__(self) -> str:
        return f"{self.indent}{self.key}:" + ("" if self.is_section else f" {_plain(self.value)}")


def _plain(value: Any) -> str:
    words = {True: "true", False: "false"}
    return (
        words[value] if isinstance(value, bool) else f"'{value}'" if ":" in str(value) else str(value).replace("'", "")
    )


def iter_lines(data: dict[str, Any], indent: str = "") -> Iterator[Line]:
    for key, value in data.items():
        head, indent = indent, indent.replace("-", " ")
        if isinstance(value, dict):
            yield Line(head, key, value, is_section=True)
            yield from iter_lines(value, indent + "  ")
        elif isinstance(value, list) and isinstance(value[0], dict):
            yield Line(head, key, value, is_section=True)
            for item in value:
                yield from iter_lines(item, indent + "- ")
        else:
            yield Line(head, key, value)


def rename(line: Line) -> str:
    return str(Line(line.indent, line.key + "_x", line.value, line.is_section))


def another_type(line: Line) -> str:
    return f"{line.indent}{line.key}: {'{x: [1]}' if not isinstance(line.value, str) else '[1]'}"


def twice(line: Line) -> str:
    return f"{line}\n{line.indent.replace('-', ' ')}{line.key}: 1"


def undefined(line: Line) -> str:
    return f"{line.indent}{line.key}: *nowhere"


def tagged(line: Line) -> str:
    return f"{line.indent}{line.key}: !thing 1"


def tabbed(line: Line) -> str:
    return f"{line.indent}\t{str(line)[len(line.indent) :]}"


def unknown_word(line: Line) -> str:
    return f"{line.indent}{line.key}: xyzzy"


BREAKAGES: list[tuple[Callable[[Line], str], Callable[[Line], bool]]] = [
    (rename, lambda line: True),
    (another_type, lambda line: not line.is_section and line.key not in FACTORY_KEYS),
    (twice, lambda line: not line.is_section),
    (undefined, lambda line: not line.is_section),
    (tagged, lambda line: not line.is_section),
    (tabbed, lambda line: not line.is_section and line.indent.strip() == "" and line.indent != ""),
    (unknown_word, lambda line: not line.is_section and line.key not in FREE_TEXT | FACTORY_KEYS),
]


def test_generated_file_is_valid(project: Project) -> None:
    (project.path / "x.pth").touch()
    text = "\n".join(map(str, iter_lines(FILE)))
    trainer = trainer_from_file(Trainer, project.write(text))
    assert list(trainer.bus.hooks) == ["one", "two", "quiet"]


@pytest.mark.slow
@given(data=st.data(), order=st.randoms(use_true_random=False))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=80)
def test_single_error_is_reported_on_its_line(project: Project, data: st.DataObject, order: random.Random) -> None:
    (project.path / "x.pth").touch()
    sections = list(FILE.items())
    order.shuffle(sections)
    lines = list(iter_lines(dict(sections)))
    breakage, applies = data.draw(st.sampled_from(BREAKAGES), label="breakage")
    index = data.draw(st.sampled_from([i for i, line in enumerate(lines) if applies(line)]), label="line")
    broken = breakage(lines[index])
    text = "\n".join([*map(str, lines[:index]), broken, *map(str, lines[index + 1 :])])
    with pytest.raises(ConfigError) as caught:
        trainer_from_file(Trainer, project.write(text))
    messages = [p for p in caught.value.problems if "the section" not in p]
    assert {int(problem.split(":")[1]) for problem in messages} == {index + broken.count("\n") + 1}


CONFIG = {
    "work_dir": "runs/here",
    "model": {"type": "parts:net", "width": 3},
    "dataset": {"type": "parts:points", "batch_size": 8},
    "training": {"epochs": 2, "accumulate": 3},
    "default_hooks": False,
    "hooks": ["parts:ProbeHook"],
}


class OwnTrainer(Trainer):
    def __init__(self, settings: Any) -> None:
        super().__init__(settings)


@pytest.mark.parametrize("cls", [Trainer, OwnTrainer])
def test_loaded_configuration_builds_the_trainer(project: Project, cls: Any) -> None:
    config = load_config(CONFIG)
    trainer = cls(config)
    assert trainer.config is config
    assert (trainer.epochs, trainer.steps.accumulate, trainer.work_dir) == (2, 3, "runs/here")
    assert list(trainer.bus.hooks) == ["probe"]


def test_mapping_is_validated_and_builds_the_trainer(project: Project) -> None:
    assert Trainer(CONFIG, overwrite=True).overwrite is True
    assert Trainer(model=CONFIG).epochs == 2
    with pytest.raises(ConfigError) as caught:
        Trainer({**CONFIG, "sed": 1, "training": {"epochs": 0}})
    assert caught.value.problems == [
        "config: training.epochs: should be greater than or equal to 1, got 0.",
        "config: sed: unknown key. Did you mean 'seed'?",
    ]


def test_other_arguments_are_refused_instead_of_ignored(project: Project) -> None:
    start = "Trainer: a configuration contains all arguments, got "
    with pytest.raises(ConfigError, match=f"^{start}'epochs', 'hooks' in addition. Set them in the configuration"):
        Trainer(CONFIG, epochs=3, hooks=[])
    with pytest.raises(ConfigError, match=f"^{start}2 further arguments in addition"):
        Trainer(CONFIG, None, None)


def test_trainer_offers_the_logger_the_writer_and_the_events_of_its_run(project: Project) -> None:
    trainer = Trainer(CONFIG)
    assert trainer.logger is trainer.bus.current.logger
    seen: list[Any] = []
    trainer.bus.on("log_scalars")(lambda values, step: seen.append((values, step)))
    trainer.writer.write_scalar("a", 1, 2)
    trainer.call_hook("log_scalars", values={"b": 3}, step=4)
    assert seen == [({"a": 1.0}, 2), ({"b": 3}, 4)]
    with pytest.raises(PointError, match="Unknown point 'log_scalrs'. Did you mean 'log_scalars'"):
        trainer.call_hook("log_scalrs")


def test_named_models_are_not_a_configuration() -> None:
    assert not is_config({"model": nn.Linear(1, 1), "dataset": nn.Linear(1, 1)})
    assert not is_config({"G": nn.Linear(1, 1)})
    assert not is_config({})
    assert is_config({"experiment_dir": "runs/x"})
