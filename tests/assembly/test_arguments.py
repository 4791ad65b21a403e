"""What a Trainer makes of its arguments, and what it says of those that it cannot use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hookbus.assembly.arguments import check_model, device_of, hooks_of, limit_of, optimizer_of
from hookbus.config import load_config
from hookbus.errors import ConfigError
from hookbus.hook import Hook


class TestDevice:
    def test_is_found_where_none_is_named(self) -> None:
        found = torch.accelerator.current_accelerator(check_available=True)

        assert device_of("auto").type == (found or torch.device("cpu")).type

    def test_is_the_one_that_was_named(self) -> None:
        assert device_of("cpu") == torch.device("cpu")

    @pytest.mark.parametrize("device", ["gpu", "xpu:99", 0.5])
    def test_that_is_not_there_is_an_error(self, device: Any) -> None:
        with pytest.raises(ConfigError) as raised:
            device_of(device)

        (line,) = str(raised.value).splitlines()
        assert line.startswith(f"device: {device!r} cannot be used here: ")
        assert line.endswith(". 'auto' takes what there is.")


class TestModel:
    def test_is_a_module(self) -> None:
        check_model(nn.Linear(1, 1))

    def test_is_no_configuration(self) -> None:
        config = load_config({"training": {"epochs": 1}})
        with pytest.raises(ConfigError) as caught:
            check_model(config)
        assert str(caught.value) == (
            "model: should be a torch.nn.Module, but it is a RunConfig. A trainer of a run file is made by "
            "Trainer.from_file(path), and one of a configuration that was read already by "
            "hookbus.assembly.assemble.trainer_from_config(Trainer, config)."
        )


class TestOptimizer:
    def test_may_be_a_function_of_the_parameters(self) -> None:
        model = nn.Linear(4, 2)
        made = optimizer_of(lambda parameters: torch.optim.SGD(parameters, lr=0.5), model)

        assert made is not None
        (group,) = made.param_groups
        assert (group["lr"], group["params"]) == (0.5, list(model.parameters()))

    def test_stays_as_it_is_once_made(self) -> None:
        model = nn.Linear(4, 2)
        given = torch.optim.SGD(model.parameters(), lr=0.5)

        assert optimizer_of(given, model) is given
        assert optimizer_of(None, model) is None


class TestLimit:
    @pytest.mark.parametrize("limit", [None, 0, 3])
    def test_is_a_count_or_none(self, limit: int | None) -> None:
        assert limit_of("epochs", limit) == limit

    @pytest.mark.parametrize(("name", "limit"), [("epochs", -1), ("epochs", True), ("iterations", 1.5)])
    def test_that_is_no_count_is_named(self, name: str, limit: Any) -> None:
        with pytest.raises(ConfigError) as raised:
            limit_of(name, limit)

        assert str(raised.value) == f"{name}: {limit!r} is not a whole number of at least 0."


class NeedsWorkDir(Hook):
    needs_work_dir = True


class Plain(Hook):
    pass


class TestDefaultHooks:
    @pytest.fixture(autouse=True)
    def _defaults(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("hookbus.assembly.arguments.get_default_hooks", lambda: [NeedsWorkDir(), Plain()])

    @pytest.mark.parametrize(
        ("work_dir", "default_hooks", "names"),
        [(".", True, ["needs_work_dir", "plain"]), (None, True, ["plain"]), (".", False, []), (None, False, [])],
    )
    def test_are_those_that_can_do_something(self, work_dir: Any, default_hooks: bool, names: list[str]) -> None:
        assert [hook.name for hook in hooks_of([], default_hooks, work_dir)] == names

    @pytest.mark.parametrize(
        ("default_hooks", "names"), [(True, ["plain", "needs_work_dir"]), (False, ["needs_work_dir"])]
    )
    def test_one_that_was_given_is_never_left_out(self, default_hooks: bool, names: list[str]) -> None:
        given = NeedsWorkDir()
        found = hooks_of([given], default_hooks, None)

        assert found[-1] is given
        assert [hook.name for hook in found] == names
