"""Tests of hook states in checkpoints."""

from __future__ import annotations

import enum
import logging
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import SecretStr
from torch import nn

from hookbus._run.run import Run
from hookbus.checkpoint.hook_states import load_late_state
from hookbus.checkpoint.state import build_checkpoint, read_checkpoint, restore_checkpoint, write_checkpoint
from hookbus.errors import CheckpointError
from hookbus.hook import Hook, HookConfig
from hookbus.testing import fingerprint
from hookbus.trainer.trainer import Trainer
from tests.toys import Saver, idle_run, net, pairs, trainer


@pytest.fixture
def get_warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, logger="hookbus")
    return lambda: [record.getMessage() for record in caplog.records]


class StatefulHook(Hook):
    """Hook with a state."""

    value: Any = 0

    def before_train(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class ConvertingHook(StatefulHook):
    """Hook whose value was named `total` in version 1, and was half as large in versions 1 and 2."""

    state_version = 3

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.called: list[Any] = []

    def migrate_state(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        self.called.append(version)
        value = state["total"] if version == 1 else state["value"]
        return {"value": 2 * value}

    def check_state(self, state: dict[str, Any]) -> None:
        self.called.append(("check_state", state["value"]))

    def restore_structure(self, run: Run, state: dict[str, Any]) -> None:
        self.called.append(("restore_structure", state["value"]))


def checkpoint_of(state: dict[str, Any], version: Any) -> dict[str, Any]:
    """Return a checkpoint with the state of a hook "mine"."""
    checkpoint = build_checkpoint(idle_run(hooks=(StatefulHook(name="mine"),)))
    checkpoint["hooks"]["mine"] |= {"state": state, "version": version, "package": "acme 1.0"}
    return checkpoint


class Color(enum.IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")


class TestHookStates:
    def test_state_is_stored_by_name_with_version_package_and_config(self) -> None:
        hook = StatefulHook(name="mine", priority=3)
        hook.value = 5

        assert build_checkpoint(idle_run(hooks=(hook,)))["hooks"] == {
            "mine": {
                "state": {"value": 5},
                "version": 1,
                "type": "StatefulHook",
                "package": "module tests.checkpoint.test_hook_states",
                "config": {"name": "mine", "priority": 3},
            }
        }

    def test_config_is_stored_without_secrets(self) -> None:
        class LoginConfig(HookConfig):
            link: SecretStr = SecretStr("")
            api_key: str = ""
            retries: int = 1

        class Login(Hook):
            Config = LoginConfig

        checkpoint = build_checkpoint(idle_run(hooks=(Login(link="abc", api_key="abc", retries=2),)))
        assert checkpoint["hooks"]["login"]["config"] == {"link": "***", "api_key": "***", "retries": 2}

    def test_each_hook_loads_its_own_state(self) -> None:
        hooks = [StatefulHook(name="a"), StatefulHook(name="b")]
        hooks[0].value, hooks[1].value = 1, 2
        checkpoint = build_checkpoint(idle_run(hooks=tuple(hooks)))
        fresh = [StatefulHook(name="b"), StatefulHook(name="a")]
        restore_checkpoint(idle_run(hooks=tuple(fresh)), checkpoint)

        assert [hook.value for hook in fresh] == [2, 1]

    def test_hook_without_a_state_in_the_checkpoint_is_logged(self, get_warnings: Callable[[], list[str]]) -> None:
        hook = StatefulHook(name="mine")
        hook.value = 3
        restore_checkpoint(idle_run(hooks=(hook, Hook(name="without a state"))), build_checkpoint(idle_run()))

        assert get_warnings() == ["No state of hook 'mine' in the checkpoint; it is re-initialized."]
        assert hook.value == 3

    def test_state_of_an_unregistered_hook_is_logged_and_kept(self, get_warnings: Callable[[], list[str]]) -> None:
        checkpoint = build_checkpoint(idle_run(hooks=(StatefulHook(name="gone"), Hook(name="without a state"))))
        run = idle_run(hooks=(StatefulHook(name="here"),))
        restore_checkpoint(run, {**checkpoint, "hooks": {**checkpoint["hooks"], **build_checkpoint(run)["hooks"]}})
        again = build_checkpoint(run)["hooks"]

        assert get_warnings() == [
            "The checkpoint contains state of hook 'gone' (module tests.checkpoint.test_hook_states), "
            "which is not registered."
        ]
        assert again["gone"] == checkpoint["hooks"]["gone"]
        assert set(again) == {"gone", "here", "without a state"}

    @pytest.mark.parametrize(("state", "version"), [({"total": 4}, 1), ({"value": 4}, 2)])
    def test_state_of_an_older_version_is_converted_once(self, state: dict[str, Any], version: int) -> None:
        hook = ConvertingHook(name="mine")
        restore_checkpoint(idle_run(hooks=(hook,)), checkpoint_of(state, version))

        assert hook.value == 8
        assert hook.called == [version, ("check_state", 8), ("restore_structure", 8), ("check_state", 8)]

    def test_state_of_the_current_version_is_not_converted(self) -> None:
        hook = ConvertingHook(name="mine")
        restore_checkpoint(idle_run(hooks=(hook,)), checkpoint_of({"value": 4}, 3))

        assert hook.value == 4
        assert 3 not in hook.called

    @pytest.mark.parametrize("version", [4, "3", "1.0"])
    def test_state_of_a_version_that_is_not_older_is_an_error(self, version: object) -> None:
        hook = ConvertingHook(name="mine")

        with pytest.raises(CheckpointError) as caught:
            restore_checkpoint(idle_run(hooks=(hook,)), checkpoint_of({"value": 4}, version))
        assert str(caught.value) == (
            f"hook 'mine': the checkpoint contains state version {version} (acme 1.0), but the installed module "
            "tests.checkpoint.test_hook_states loads version 3. Install the version that wrote the checkpoint."
        )
        assert hook.called == []

    def test_older_version_that_a_hook_does_not_convert_is_an_error(self) -> None:
        class ChangedHook(StatefulHook):
            state_version = 2

        with pytest.raises(CheckpointError) as caught:
            restore_checkpoint(idle_run(hooks=(ChangedHook(name="mine"),)), checkpoint_of({"value": 4}, 1))
        assert str(caught.value) == (
            "hook 'mine': the checkpoint contains state version 1 (acme 1.0), but the installed module "
            "tests.checkpoint.test_hook_states loads version 2 and does not convert that version. Install the version "
            "that wrote the checkpoint."
        )

    def test_failed_conversion_restores_no_other_hook(self) -> None:
        other, checkpoint = StatefulHook(name="other"), checkpoint_of({"neither": 4}, 1)
        checkpoint["hooks"]["other"] = {**checkpoint["hooks"]["mine"], "state": {"value": 9}}

        with pytest.raises(CheckpointError, match=r"hook 'mine' .* cannot be loaded: KeyError: 'total'"):
            restore_checkpoint(idle_run(hooks=(other, ConvertingHook(name="mine"))), checkpoint)
        assert other.value == 0

    def test_conversion_that_returns_no_state_is_an_error(self) -> None:
        class ForgetfulHook(ConvertingHook):
            def migrate_state(self, state: dict[str, Any], version: int) -> dict[str, Any]:
                return None  # type: ignore[return-value]

        with pytest.raises(CheckpointError, match="expected the converted state, got NoneType. Return a dict"):
            restore_checkpoint(idle_run(hooks=(ForgetfulHook(name="mine"),)), checkpoint_of({"total": 4}, 1))

    def test_state_that_no_hook_loads_keeps_its_version(self) -> None:
        checkpoint = checkpoint_of({"total": 4}, 1)
        run = idle_run()
        restore_checkpoint(run, checkpoint)
        again = build_checkpoint(run)["hooks"]["mine"]
        hook = ConvertingHook(name="mine")
        load_late_state(run, "mine", hook)

        assert again == checkpoint["hooks"]["mine"]
        assert hook.value == 8

    @pytest.mark.parametrize("value", [np.float32(0.5), np.int64(3), np.bool_(True)])
    def test_numpy_scalars_are_stored_as_python_numbers(self, value: Any) -> None:
        hook = StatefulHook(name="mine")
        hook.value = {"scores": [value]}
        checkpoint = build_checkpoint(idle_run(hooks=(hook,)))

        (number,) = checkpoint["hooks"]["mine"]["state"]["value"]["scores"]
        assert number == value
        assert type(number) in (float, int, bool)

    @pytest.mark.parametrize(
        ("value", "path"),
        [
            (np.datetime64("2020-01-01"), "['value']: invalid type date"),
            (np.ones(2), "['value']: invalid type ndarray"),
            ({"a": [0, {"b": Path("x")}]}, "['value']['a'][1]['b']: invalid type PosixPath"),
            (Color.RED, "['value']: invalid type Color"),
            (Point(1, 2), "['value']: invalid type Point"),
            (defaultdict(int), "['value']: invalid type defaultdict"),
            (frozenset([1]), "['value']: invalid type frozenset"),
            ({Path("x"): 1}, "['value']: the key PosixPath('x'): invalid type PosixPath"),
            ({(1, np.int64(2)): 1}, f"['value']: the key {(1, np.int64(2))}[1]: invalid type int64"),
            (lambda: 1, "['value']: invalid type function"),
        ],
    )
    def test_object_of_another_type_is_rejected_with_hook_and_key(self, value: Any, path: str) -> None:
        hook = StatefulHook(name="mine")
        hook.value = value

        with pytest.raises(CheckpointError) as caught:
            build_checkpoint(idle_run(hooks=(hook,)))
        assert str(caught.value) == (
            f"hook 'mine': state_dict(){path}. A checkpoint contains only built-in Python types and tensors, so that "
            "loading it executes no code. Convert the value, for example with float(), str(), dict() or "
            "torch.as_tensor()."
        )

    @pytest.mark.parametrize(
        "value",
        [
            *(
                None,
                True,
                3,
                0.5,
                1 + 2j,
                "text",
                b"bytes",
                bytearray(b"x"),
                torch.ones(2),
                nn.Parameter(torch.ones(1)),
            ),
            *([1, (2, {3: {4}})], OrderedDict(a=1), Counter("aab"), {(1, "a"): 1, None: 2, 0.5: 3, b"k": 4}),
            *(torch.Size([1, 2]), torch.float16, torch.device("cpu")),
        ],
    )
    def test_every_accepted_value_can_be_loaded(self, tmp_path: Path, value: Any) -> None:
        hook = StatefulHook(name="mine")
        hook.value = value
        write_checkpoint(tmp_path / "a.pth", build_checkpoint(idle_run(hooks=(hook,))), 1)
        read = read_checkpoint(tmp_path / "a.pth")["hooks"]["mine"]["state"]["value"]

        assert type(read) is type(value)
        assert fingerprint(read) == fingerprint(value)

    def test_value_added_to_the_checkpoint_is_validated_before_writing(self, tmp_path: Path) -> None:
        class AddsToCheckpoint(Hook):
            def before_save_checkpoint(self, checkpoint: dict[str, Any], run: Run) -> None:
                checkpoint["mine"] = {"good": 1, "bad": np.ones(2)} if run.iters_done == 2 else {"good": 1}

        saver = Saver()
        with pytest.raises(
            CheckpointError, match=r"^checkpoint\['mine'\]\['bad'\]: invalid type ndarray. A checkpoint contains only"
        ):
            trainer(saver, AddsToCheckpoint(), iterations=3, work_dir=tmp_path).fit()
        assert [path.name for path in (tmp_path / "checkpoints").glob("*.pth")] == ["iter_1.pth"]
        assert read_checkpoint(saver.files[0])["mine"] == {"good": 1}


class GrowingHook(Hook):
    """Hook that appends a layer, and a parameter group with it, after the first epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = 0

    def after_epoch(self, run: Run) -> None:
        if self.layers == 0:
            self.grow(run, 1)

    def grow(self, run: Run, layers: int) -> None:
        while self.layers < layers:
            layer = nn.Linear(2, 2)
            run.model.append(layer)  # type: ignore[union-attr, operator]
            run.optimizer.add_param_group({"params": layer.parameters(), "lr": 0.05})
            self.layers += 1

    def state_dict(self) -> dict[str, Any]:
        return {"layers": self.layers}

    def restore_structure(self, run: Run, state: dict[str, Any]) -> None:
        self.grow(run, state["layers"])


def decay(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


class TestRestoreStructure:
    """A layer and a parameter group are added after the first of three epochs."""

    def build(self, hook: Hook, saver: Saver, **options: Any) -> Trainer:
        torch.manual_seed(0)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return trainer(
            hook, saver, model=model, optimizer=optimizer, scheduler=decay(optimizer), epochs=3, seed=1, **options
        )

    def get_state(self, run: Run) -> str:
        assert run.model is not None
        return fingerprint([run.model.state_dict(), run.optimizer.state_dict(), run.scheduler.state_dict()])

    @pytest.mark.parametrize("position", range(9))
    def test_run_resumes_exactly_before_and_after_the_change(self, position: int, tmp_path: Path) -> None:
        saver = Saver(iteration=position + 1)
        complete = self.build(GrowingHook(), saver, work_dir=tmp_path / "a").fit()

        resumed = self.build(GrowingHook(), Saver(iteration=-1), resume=saver.files[0]).fit()

        assert self.get_state(resumed) == self.get_state(complete)
        assert [len(group["params"]) for group in resumed.optimizer.param_groups] == [4, 2]

    def test_check_and_test_accept_the_checkpoint_of_a_changed_model(self, tmp_path: Path) -> None:
        saver = Saver("after_train")
        complete = self.build(GrowingHook(), saver, work_dir=tmp_path / "a").fit()
        path = saver.files[0]
        assert len(complete.model) == 5  # type: ignore[arg-type]

        for argument in ("resume", "load_from"):
            self.build(GrowingHook(), Saver(iteration=-1), **{argument: path}).check()
        tested = self.build(
            GrowingHook(), Saver(iteration=-1), load_from=path, test_loader=pairs(), metrics=["accuracy"]
        )
        tested.test()
        assert fingerprint(tested.model.state_dict()) == fingerprint(complete.model.state_dict())  # type: ignore[union-attr]

    def test_model_is_compared_after_before_run_has_changed_it(self, tmp_path: Path) -> None:
        class WrappingHook(Hook):
            def before_run(self, run: Run) -> None:
                layer = nn.Linear(2, 2)
                run.model.append(layer)  # type: ignore[union-attr, operator]
                run.optimizer.add_param_group({"params": layer.parameters()})

        saver = Saver("after_train")
        complete = self.build(WrappingHook(), saver, work_dir=tmp_path / "a").fit()
        path = saver.files[0]

        for argument in ("resume", "load_from"):
            tested = self.build(WrappingHook(), Saver(iteration=-1), test_loader=pairs(), metrics=["accuracy"])
            setattr(tested, argument, path)
            tested.check()
        tested.test()
        assert fingerprint(tested.model.state_dict()) == fingerprint(complete.model.state_dict())  # type: ignore[union-attr]
        assert self.build(WrappingHook(), Saver(iteration=-1), resume=path).fit().iters_done == 9

    def test_checkpoint_of_another_model_that_was_changed_is_refused(self, tmp_path: Path) -> None:
        saver = Saver("after_train")
        self.build(GrowingHook(), saver, work_dir=tmp_path / "a").fit()
        with pytest.raises(CheckpointError, match="The weights do not match the model"):
            trainer(GrowingHook(), model=net(width=9), epochs=3, resume=saver.files[0]).check()

    def test_change_that_no_hook_restores_is_an_error_that_names_the_method(self, tmp_path: Path) -> None:
        class ForgettingHook(GrowingHook):
            restore_structure = Hook.restore_structure

        saver = Saver("after_train")
        self.build(ForgettingHook(), saver, work_dir=tmp_path / "a").fit()
        with pytest.raises(CheckpointError, match=r"Unexpected key.*was changed during the run .*restore_structure"):
            self.build(ForgettingHook(), Saver(), resume=saver.files[0]).fit()

    def test_parameter_group_that_no_hook_restores_is_an_error_with_numbers(self) -> None:
        run = idle_run(net(), optimizer=torch.optim.SGD(net().parameters(), lr=0.1))
        checkpoint = build_checkpoint(run)
        checkpoint["optimizer"]["param_groups"] *= 3
        with pytest.raises(CheckpointError, match="contains 3 parameter groups, and the optimizer has 1. Hooks that"):
            restore_checkpoint(run, checkpoint)

    def test_failure_names_the_hook(self) -> None:
        class FailingHook(Hook):
            def restore_structure(self, run: Run, state: dict[str, Any]) -> None:
                raise KeyError("layers")

        run = idle_run(hooks=(FailingHook(name="own"),))
        with pytest.raises(CheckpointError, match=r"hook 'own' .*: the state in the checkpoint cannot be loaded: KeyE"):
            restore_checkpoint(run, build_checkpoint(run))
