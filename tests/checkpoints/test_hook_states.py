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
from torch import nn

from hookbus.errors import CheckpointError
from hookbus.hook import Hook
from hookbus.run import Run
from hookbus.state import (
    collect,
    read_checkpoint,
    restore,
    write_checkpoint,
)
from hookbus.testing import fingerprint
from tests.toys import Saver, idle_run, trainer


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, logger="hookbus")
    return lambda: [record.getMessage() for record in caplog.records]


class Counts(Hook):
    """A hook with a state."""

    value: Any = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class Colour(enum.IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")


class TestHookStates:
    def test_are_kept_by_name_with_version_package_and_settings(self) -> None:
        hook = Counts(name="mine", priority=3)
        hook.value = 5

        assert collect(idle_run(hooks=(hook,)))["hooks"] == {
            "mine": {
                "state": {"value": 5},
                "version": 1,
                "type": "Counts",
                "package": "module tests.checkpoints.test_hook_states",
                "config": {"name": "mine", "priority": 3},
            }
        }

    def test_each_hook_gets_its_own_back(self) -> None:
        hooks = [Counts(name="a"), Counts(name="b")]
        hooks[0].value, hooks[1].value = 1, 2
        checkpoint = collect(idle_run(hooks=tuple(hooks)))
        fresh = [Counts(name="b"), Counts(name="a")]
        restore(idle_run(hooks=tuple(fresh)), checkpoint)

        assert [hook.value for hook in fresh] == [2, 1]

    def test_one_that_the_checkpoint_does_not_know_is_reported(self, warned: Callable[[], list[str]]) -> None:
        hook = Counts(name="mine")
        hook.value = 3
        restore(idle_run(hooks=(hook, Hook(name="without a state"))), collect(idle_run()))

        assert warned() == ["The checkpoint holds no state of hook 'mine': it starts afresh."]
        assert hook.value == 3

    def test_one_that_is_not_active_is_reported_and_kept(self, warned: Callable[[], list[str]]) -> None:
        checkpoint = collect(idle_run(hooks=(Counts(name="gone"), Hook(name="without a state"))))
        run = idle_run(hooks=(Counts(name="here"),))
        restore(run, {**checkpoint, "hooks": {**checkpoint["hooks"], **collect(run)["hooks"]}})
        again = collect(run)["hooks"]

        assert warned() == [
            "The checkpoint holds state of hook 'gone' (module tests.checkpoints.test_hook_states), "
            "which is not active."
        ]
        assert again["gone"] == checkpoint["hooks"]["gone"]
        assert set(again) == {"gone", "here", "without a state"}

    def test_another_layout_of_a_state_is_an_error(self) -> None:
        checkpoint = collect(idle_run(hooks=(Counts(name="mine"),)))
        checkpoint["hooks"]["mine"]["version"] = 4

        with pytest.raises(CheckpointError) as caught:
            restore(idle_run(hooks=(Counts(name="mine"),)), checkpoint)
        assert str(caught.value) == (
            "hook 'mine': the checkpoint holds version 4 of its state (module tests.checkpoints.test_hook_states), "
            "and the installed module tests.checkpoints.test_hook_states reads version 1."
        )

    @pytest.mark.parametrize("value", [np.float32(0.5), np.int64(3), np.bool_(True)])
    def test_numbers_of_numpy_are_kept_as_those_of_python(self, value: Any) -> None:
        hook = Counts(name="mine")
        hook.value = {"scores": [value]}
        checkpoint = collect(idle_run(hooks=(hook,)))

        (kept,) = checkpoint["hooks"]["mine"]["state"]["value"]["scores"]
        assert kept == value
        assert type(kept) in (float, int, bool)

    @pytest.mark.parametrize(
        ("value", "place"),
        [
            (np.datetime64("2020-01-01"), "['value'] is a date"),
            (np.ones(2), "['value'] is a ndarray"),
            ({"a": [0, {"b": Path("x")}]}, "['value']['a'][1]['b'] is a PosixPath"),
            (Colour.RED, "['value'] is a Colour"),
            (Point(1, 2), "['value'] is a Point"),
            (defaultdict(int), "['value'] is a defaultdict"),
            (frozenset([1]), "['value'] is a frozenset"),
            ({Path("x"): 1}, "['value']: the key PosixPath('x') is a PosixPath"),
            ({(1, np.int64(2)): 1}, "['value']: the key (1, np.int64(2))[1] is a int64"),
            (lambda: 1, "['value'] is a function"),
        ],
    )
    def test_what_is_not_plain_data_is_refused_by_hook_and_key(self, value: Any, place: str) -> None:
        hook = Counts(name="mine")
        hook.value = value

        with pytest.raises(CheckpointError) as caught:
            collect(idle_run(hooks=(hook,)))
        assert str(caught.value) == (
            f"hook 'mine': state_dict(){place}. A checkpoint holds plain Python values and tensors only, so that "
            "reading it runs no code: convert it, for example by float(), str(), dict() or torch.as_tensor()."
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
    def test_whatever_passes_can_be_read_back(self, tmp_path: Path, value: Any) -> None:
        hook = Counts(name="mine")
        hook.value = value
        write_checkpoint(tmp_path / "a.pth", collect(idle_run(hooks=(hook,))), 1)
        read = read_checkpoint(tmp_path / "a.pth")["hooks"]["mine"]["state"]["value"]

        assert type(read) is type(value)
        assert fingerprint(read) == fingerprint(value)

    def test_what_a_hook_puts_into_the_checkpoint_is_looked_at_before_it_is_written(self, tmp_path: Path) -> None:
        class Adds(Hook):
            def before_save_checkpoint(self, checkpoint: dict[str, Any], run: Run) -> None:
                checkpoint["mine"] = {"good": 1, "bad": np.ones(2)} if run.iters_done == 2 else {"good": 1}

        saver = Saver()
        with pytest.raises(
            CheckpointError, match=r"^checkpoint\['mine'\]\['bad'\] is a ndarray. A checkpoint holds plain"
        ):
            trainer(saver, Adds(), iterations=3, work_dir=tmp_path).fit()
        assert [path.name for path in (tmp_path / "checkpoints").glob("*.pth")] == ["iter_1.pth"]
        assert read_checkpoint(saver.files[0])["mine"] == {"good": 1}
