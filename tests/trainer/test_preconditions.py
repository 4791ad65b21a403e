"""Every entry to a training verifies the same preconditions, with the same message, before anything happens."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, Subset, TensorDataset

from hookbus import Hook, HookBus, hookimpl
from hookbus._events.schedules import last
from hookbus.errors import ConfigError, HookError, LoopError
from hookbus.trainer.trainer import Trainer
from tests import toys


class Recorder(Hook):
    """Record every call of a listener that must not be called if the training is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def before_run(self) -> None:
        self.calls.append("before_run")

    def on_exception(self) -> None:
        self.calls.append("on_exception")

    def after_run(self) -> None:
        self.calls.append("after_run")

    def cleanup(self) -> None:
        self.calls.append("cleanup")


class Reader(Hook):
    @property
    def required_metrics(self) -> Collection[str]:
        return ("val/loss",)


class Dependent(Hook):
    @property
    def requires_validation(self) -> bool:
        return True


class Scheduling(Hook):
    schedules_validation = True


class Ending(Hook):
    @hookimpl(when=last)
    def after_epoch(self) -> None: ...


class Validating(Hook):
    @property
    def validation_fn(self) -> Any:
        return lambda run: {"loss": 1.0}


class Refusing(Hook):
    def check(self, run: Any) -> None:
        raise ConfigError(["layer: no module, got 'haed'.", "size: too large, got 9."])


class Filing(Hook):
    requires_work_dir = True


class Listing(Hook):
    """Hook with an output path in a setting."""

    def __init__(self, path: str | None, **settings: Any) -> None:
        super().__init__(None, **settings)
        self.path = path

    @property
    def output_paths(self) -> dict[str, str | None]:
        return {"path": self.path}


class FilingOrListing(Listing):
    requires_work_dir = True


class Broken(Hook):
    def check(self, run: Any) -> None:
        raise HookError("no model.")


def plateau(**options: Any) -> dict[str, Any]:
    model = toys.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer, "scheduler": ReduceLROnPlateau(optimizer), **options}


def one_cycle() -> dict[str, Any]:
    model = toys.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return {"model": model, "optimizer": optimizer, "scheduler": OneCycleLR(optimizer, 0.1, total_steps=3)}


CASES: dict[str, Callable[[Path], tuple[list[Hook], dict[str, Any]]]] = {
    "required metric": lambda path: ([Reader()], {}),
    "required validation": lambda path: ([Dependent()], {}),
    "requested validation": lambda path: ([Scheduling()], {}),
    "two validations": lambda path: ([Validating(name="a"), Validating(name="b")], {}),
    "plateau scheduler": lambda path: ([], plateau()),
    "sanity check": lambda path: ([], {"validate_first": True}),
    "short scheduler": lambda path: ([], one_cycle()),
    "unknown limit": lambda path: ([Ending()], {"epochs": None, "iterations": 4}),
    "arguments": lambda path: ([], {"optimizer": None, "epochs": None}),
    "closure": lambda path: ([], {"optimizer": torch.optim.LBFGS(toys.net().parameters())}),
    "check of a hook": lambda path: ([Refusing()], {}),
    "options": lambda path: ([], {"resume": "auto", "overwrite": True}),
    "loss": lambda path: ([], {"loss_fn": None, "train_loader": DataLoader(TensorDataset(*toys.pairs(1)[0]), 2)}),
    "work directory": lambda path: ([Filing()], {"work_dir": None}),
    "relative output": lambda path: ([Listing("a/b")], {"work_dir": None}),
    "output that is not set": lambda path: ([FilingOrListing(None)], {"work_dir": None}),
    "several": lambda path: ([Refusing(), Reader(), Scheduling()], {"validate_first": True}),
}


def get_error(begin: Callable[[], object]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        begin()
    return caught.value


class TestTrainer:
    @pytest.mark.parametrize("case", CASES.values(), ids=CASES)
    def test_check_and_fit_refuse_with_the_same_message(self, case: Any, tmp_path: Path) -> None:
        problems = []
        for entry in ("check", "fit"):
            hooks, options = case(tmp_path)
            trainer = toys.trainer(
                recorder := Recorder(), *hooks, **{"epochs": 4, "work_dir": tmp_path / "x", **options}
            )
            problems.append(get_error(getattr(trainer, entry)).problems)
            assert recorder.calls == []
            assert list(tmp_path.iterdir()) == []
        assert problems[0] == problems[1] != []

    def test_loss_that_is_missing_is_named_once(self) -> None:
        loader = DataLoader(Subset(TensorDataset(*toys.pairs(1)[0]), [0, 1]))
        assert get_error(
            toys.trainer(loss_fn=None, train_loader=loader, val_loader=loader, epochs=1).check
        ).problems == [
            "loss: missing, because Sequential.forward cannot be called with the 2 elements of a batch, got None. Pass "
            "`loss_fn` to the Trainer (`loss:` in a run file), or pass `step_fn`."
        ]

    @pytest.mark.parametrize("kind", ["one tensor", "function", "hook"])
    def test_loss_that_may_be_computed_is_no_error(self, kind: str) -> None:
        class Step(Hook):
            def train_step(self, run: Any, batch: Any) -> Any:
                loss = run.model(batch[0]).square().mean()
                loss.backward()
                run.optimizer.step()
                return {"loss": loss}

        class Mean(torch.nn.Linear):
            def forward(self, batch: torch.Tensor) -> torch.Tensor:
                return super().forward(batch).mean()

        inputs, targets = toys.pairs(1)[0]
        data = TensorDataset(inputs) if kind == "one tensor" else TensorDataset(inputs, targets)
        collate = (lambda samples: torch.stack([sample[0] for sample in samples])) if kind == "function" else None
        loader = DataLoader(data, 2, collate_fn=collate)
        hooks = [Step()] if kind == "hook" else []
        run = toys.trainer(*hooks, model=Mean(inputs.shape[1], 2), loss_fn=None, train_loader=loader, epochs=1).fit()
        assert run.epochs_done == 1

    def test_several_problems_are_listed_together(self) -> None:
        trainer = toys.trainer(Refusing(), Reader(), validate_first=True)
        assert [problem.partition(": ")[0] for problem in get_error(trainer.fit).problems] == [
            "fit",
            "validate_first",
            f"hook 'reader' (module {__name__}) requires 'val/loss' of a validation, but the run has no validation "
            "function. Pass val_loader= to the Trainer (in a run file",
            f"hook 'refusing' (module {__name__})",
            f"hook 'refusing' (module {__name__})",
        ]

    def test_refused_training_keeps_the_run_that_it_overwrites(self, tmp_path: Path) -> None:
        toys.trainer(toys.Saver("after_train"), epochs=1, work_dir=tmp_path / "x").fit()
        files = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
        get_error(toys.trainer(Reader(), epochs=1, work_dir=tmp_path / "x", overwrite=True).fit)
        assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == files

    def test_error_of_another_type_keeps_its_type(self) -> None:
        with pytest.raises(HookError, match=r"^hook 'broken' \(module .*\): no model\.$"):
            toys.trainer(Broken(), epochs=1).fit()

    def test_mixture_is_an_error_of_the_common_type(self) -> None:
        for entry in ("check", "fit"):
            with pytest.raises(Exception, match="no model") as caught:
                getattr(toys.trainer(Broken(), Refusing(), epochs=1), entry)()
            assert type(caught.value).__name__ == "HookbusError"

    def test_validation_of_a_hook_provides_the_metric(self) -> None:
        class Own(Validating):
            def after_train_epoch(self, run: Any) -> None:
                run.request_validation()

        run = toys.trainer(Own(), Reader(), **plateau(epochs=2)).fit()
        assert dict(run.metrics.results) == {"val/loss": 1.0}

    def test_further_training_is_checked_from_its_position(self) -> None:
        trainer = toys.trainer(**{**one_cycle(), "epochs": 2})
        trainer.fit()
        trainer.epochs = 3
        trainer.check()
        assert trainer.fit().epochs_done == 3

    def test_missing_data_are_reported_without_reading_a_batch(self) -> None:
        trainer: Trainer = toys.trainer(train_loader=None)
        assert [problem.partition(".")[0] for problem in get_error(trainer.check).problems] == [
            "fit: the training data are missing",
            "fit: exactly one limit is required",
        ]

    def test_corrupted_initial_weights_are_refused_before_the_run(self, tmp_path: Path) -> None:
        toys.trainer(hook := toys.Saver("after_train"), epochs=1, work_dir=tmp_path / "earlier").fit()
        content = bytearray(hook.files[0].read_bytes())
        content[len(content) // 2] ^= 1
        hook.files[0].write_bytes(content)
        messages = []
        for entry in ("check", "fit"):
            trainer = toys.trainer(recorder := Recorder(), epochs=1, load_from=hook.files[0], work_dir=tmp_path / "x")
            with pytest.raises(Exception, match="corrupted") as caught:
                getattr(trainer, entry)()
            messages.append(str(caught.value))
            assert recorder.calls == []
        assert messages[0] == messages[1]
        assert not (tmp_path / "x").exists()

    def test_only_check_reads_a_batch(self) -> None:
        trainer = toys.trainer(train_loader=[torch.ones(4, 9)], epochs=1)
        with pytest.raises(LoopError, match="A batch of the train_loader cannot be processed"):
            trainer.check()


def test_check_of_a_hook_reads_the_planned_directory(tmp_path: Path) -> None:
    class Directories(Hook):
        def check(self, run: Any) -> None:
            seen.append((run.work_dir, run.get("experiment_dir"), run.get("logs_dir")))
            raise ConfigError(["no."])

    seen: list[Any] = []
    trainer = toys.trainer(Directories(), epochs=1, work_dir=tmp_path / "x")
    for begin in (trainer.check, trainer.fit, HookBus([Directories()]).run(work_dir=tmp_path / "x").__enter__):
        get_error(begin)
    assert seen == [(None, tmp_path / "x", tmp_path / "x" / "logs")] * 3
    assert list(tmp_path.iterdir()) == []


class TestWorkDirectory:
    @pytest.mark.parametrize("name", ["work directory", "relative output", "output that is not set"])
    def test_loop_without_a_directory_is_refused_as_a_trainer_is(self, name: str, tmp_path: Path) -> None:
        expected = get_error(toys.trainer(*CASES[name](tmp_path)[0], epochs=1).fit).problems
        bus = HookBus([recorder := Recorder(), *CASES[name](tmp_path)[0]])
        assert get_error(bus.run(epochs=1).__enter__).problems == expected
        assert recorder.calls == []

    def test_message_names_the_setting_that_replaces_the_directory(self) -> None:
        hooks = [Filing(), Listing("a/b"), FilingOrListing(None, name="both")]
        names = [f"hook '{name}' (module {__name__}): " for name in ("filing", "listing", "both")]
        assert get_error(toys.trainer(*hooks, epochs=1).check).problems == [
            f"{names[0]}requires a work directory, got none. Set `work_dir`.",
            f"{names[1]}path: expected an absolute path in a run without a work directory, got a/b. Set `work_dir`, or "
            "set `path` to an absolute path.",
            f"{names[2]}requires a work directory, got none. Set `work_dir`, or set `path` to an absolute path.",
        ]

    @pytest.mark.parametrize("path", ["~/a", "/tmp/a"])
    def test_absolute_output_path_replaces_the_work_directory(self, path: str) -> None:
        toys.trainer(FilingOrListing(path), Listing(None, name="unset"), epochs=1).check()

    def test_evaluation_requires_no_directory(self) -> None:
        toys.trainer(Filing(), val_loader=toys.pairs(1)).validate()
        with HookBus([Filing()]).run(mode="val"):
            pass


class TestCustomLoop:
    @pytest.mark.parametrize("name", ["requested validation", "two validations", "check of a hook"])
    def test_loop_is_refused_with_the_message_of_the_trainer(self, name: str, tmp_path: Path) -> None:
        hooks, options = CASES[name](tmp_path)
        expected = get_error(toys.trainer(*hooks, **{"epochs": 4, **options}).fit).problems
        bus = HookBus([recorder := Recorder(), *CASES[name](tmp_path)[0]])
        assert get_error(bus.run(epochs=4, work_dir=tmp_path / "x").__enter__).problems == expected
        assert (recorder.calls, list(tmp_path.iterdir())) == ([], [])

    def test_schedule_without_any_limit_is_refused(self, tmp_path: Path) -> None:
        error = get_error(HookBus([Ending()]).run(work_dir=tmp_path / "x").__enter__)
        assert str(error).startswith("hook 'ending' at after_epoch: when=last: the run has no known limit. ")
        assert list(tmp_path.iterdir()) == []

    def test_limit_that_the_loader_determines_is_no_error(self) -> None:
        class EndingIteration(Hook):
            @hookimpl(when=last)
            def after_train_iter(self, run: Any) -> None:
                due.append(run.iters_done)

        due: list[int] = []
        bus = HookBus([EndingIteration()])
        with bus.run(epochs=2) as run:
            for _ in run.epochs():
                for index, batch in run.batches([torch.ones(1)] * 3):
                    bus.emit("after_train_iter", batch_idx=index, batch=batch)
        assert due == [6]

    @pytest.mark.parametrize("hook", [Reader, Dependent])
    def test_loop_may_emit_the_results_that_a_hook_requires(self, hook: type[Hook]) -> None:
        with HookBus([hook()]).run() as run:
            run.bus.emit("before_val")
            run.bus.emit("after_val", metrics={"val/loss": 1.0})

    def test_refused_loop_does_not_replace_the_previous_run(self) -> None:
        bus = HookBus()
        with bus.run() as first:
            pass
        bus.register(Refusing())
        get_error(bus.run().__enter__)
        assert bus.current is first
