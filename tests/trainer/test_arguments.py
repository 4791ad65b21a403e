"""Tests of the validation and conversion of Trainer arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hookbus.errors import ConfigError
from hookbus.hook import Hook
from hookbus.trainer.arguments import check_model, resolve_device, resolve_hooks, resolve_optimizer, validate_limit


class TestDevice:
    def test_auto_device_is_the_accelerator_or_the_cpu(self) -> None:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None

        assert resolve_device("auto").type == (accelerator or torch.device("cpu")).type

    def test_device_is_the_named_one(self) -> None:
        assert resolve_device("cpu") == torch.device("cpu")

    @pytest.mark.parametrize("device", ["gpu", "xpu:99", 0.5])
    def test_unavailable_device_is_an_error(self, device: Any) -> None:
        with pytest.raises(ConfigError) as raised:
            resolve_device(device)

        (line,) = str(raised.value).splitlines()
        assert line.startswith(f"device: {device!r} cannot be used: ")
        assert line.endswith(". Pass 'auto' to use the available device.")


class TestModel:
    def test_model_is_a_module(self) -> None:
        check_model(nn.Linear(1, 1))

    def test_path_of_a_run_file_is_not_a_model(self) -> None:
        with pytest.raises(ConfigError) as caught:
            check_model("run.yaml")
        assert str(caught.value) == (
            "model: should be a torch.nn.Module or a configuration, got str. Use Trainer.from_file(path) or "
            "Trainer(load_config(path)) for a run file."
        )


class TestOptimizer:
    def test_optimizer_may_be_a_function_of_the_parameters(self) -> None:
        model = nn.Linear(4, 2)
        optimizer = resolve_optimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.5), model.parameters())

        assert optimizer is not None
        (group,) = optimizer.param_groups
        assert (group["lr"], group["params"]) == (0.5, list(model.parameters()))

    def test_optimizer_instance_is_returned_unchanged(self) -> None:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

        assert resolve_optimizer(optimizer, []) is optimizer
        assert resolve_optimizer(None, []) is None


class TestLimit:
    @pytest.mark.parametrize("limit", [None, 0, 3])
    def test_limit_is_an_integer_or_none(self, limit: int | None) -> None:
        assert validate_limit("epochs", limit) == limit

    @pytest.mark.parametrize(("name", "limit"), [("epochs", -1), ("epochs", True), ("iterations", 1.5)])
    def test_invalid_limit_is_named(self, name: str, limit: Any) -> None:
        with pytest.raises(ConfigError) as raised:
            validate_limit(name, limit)

        assert str(raised.value) == f"{name}: expected an integer >= 0, got {limit!r}."


class NeedsWorkDir(Hook):
    requires_work_dir = True


class Plain(Hook):
    pass


class TestDefaultHooks:
    @pytest.fixture(autouse=True)
    def _defaults(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("hookbus.trainer.arguments.get_default_hooks", lambda: [NeedsWorkDir(), Plain()])

    @pytest.mark.parametrize(
        ("work_dir", "default_hooks", "names"),
        [(".", True, ["needs_work_dir", "plain"]), (None, True, ["plain"]), (".", False, []), (None, False, [])],
    )
    def test_default_hooks_depend_on_the_work_dir(self, work_dir: Any, default_hooks: bool, names: list[str]) -> None:
        assert [hook.name for hook in resolve_hooks([], default_hooks, work_dir)] == names

    @pytest.mark.parametrize(
        ("default_hooks", "names"), [(True, ["plain", "needs_work_dir"]), (False, ["needs_work_dir"])]
    )
    def test_user_hook_is_never_omitted(self, default_hooks: bool, names: list[str]) -> None:
        user_hook = NeedsWorkDir()
        hooks = resolve_hooks([user_hook], default_hooks, None)

        assert hooks[-1] is user_hook
        assert [hook.name for hook in hooks] == names
