from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from hookbus import HookBus, Trainer
from hookbus.errors import ConfigError, LoopError
from hookbus.testing import check_hook, fake_training
from hookbus_guards import StartupCheckHook

OFF = {"labels": False, "loaders": False, "gradients": False, "optimizer": False}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(2, 3), nn.Linear(2, 3)
        self.num_classes = 3

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.used(inputs)  # type: ignore[no-any-return]


def loader(*labels: int) -> list[Any]:
    return [(torch.ones(1, 2), torch.tensor([label])) for label in labels]


def train(hook: StartupCheckHook, **options: Any) -> Trainer:
    model = options.pop("model", None) or Net()
    given: dict[str, Any] = {
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss_fn": functional.cross_entropy,
        "train_loader": loader(0, 1, 2),
        "epochs": 1,
        "work_dir": None,
        "hooks": [hook],
        "default_hooks": False,
        "device": "cpu",
    }
    trainer = Trainer(model, **{**given, **options})
    trainer.fit()
    return trainer


@pytest.mark.parametrize("settings", [{}, OFF, {"num_classes": 2}])
def test_it_keeps_what_every_hook_promises(settings: dict[str, Any]) -> None:
    check_hook(StartupCheckHook, **settings)


class TestLabels:
    def test_that_are_no_class_are_an_error_before_the_forward(self) -> None:
        with pytest.raises(
            LoopError, match=r"iteration 2 has labels that are no class: 3\. There are 3 classes, from 0 to 2"
        ):
            train(StartupCheckHook(), train_loader=loader(0, 3))

    def test_are_looked_at_in_the_first_iterations_only(self) -> None:
        with pytest.raises(IndexError):  # of the loss itself
            train(StartupCheckHook(label_batches=1), train_loader=loader(0, 3))

    def test_are_compared_with_the_number_that_is_configured(self) -> None:
        with pytest.raises(LoopError, match="labels that are no class: 2"):
            train(StartupCheckHook(num_classes=2))

    def test_are_compared_with_the_classes_of_the_data_where_the_model_says_nothing(self) -> None:
        data = TensorDataset(torch.ones(2, 2), torch.tensor([0, 2]))
        data.classes = ["a", "b"]  # type: ignore[attr-defined]

        with pytest.raises(LoopError, match="labels that are no class: 2"):
            train(StartupCheckHook(optimizer=False), model=nn.Linear(2, 3), train_loader=DataLoader(data, batch_size=2))

    def test_are_not_looked_at_where_nobody_knows_the_number(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "hookbus"):
            fake_training([StartupCheckHook()])

        assert "nobody says how many classes there are" in caplog.text

    def test_that_mean_nothing_are_no_mistake(self) -> None:
        train(StartupCheckHook(), train_loader=[(torch.ones(2, 2), torch.tensor([0, -100]))])

    def test_may_be_left_alone(self) -> None:
        with pytest.raises(IndexError):
            train(StartupCheckHook(labels=False), train_loader=loader(3))


class TestLoaders:
    @pytest.mark.parametrize("name", ["val_loader", "test_loader"])
    def test_without_a_batch_are_an_error_before_the_training(self, name: str) -> None:
        empty = DataLoader(TensorDataset(torch.ones(3, 2)), batch_size=4, drop_last=True)

        with pytest.raises(LoopError, match=rf"The {name} has no batch: .* drop_last"):
            train(StartupCheckHook(), **{name: empty})
        with pytest.raises(LoopError, match=rf"The {name} 'far' has no batch"):
            train(StartupCheckHook(), **{name: {"near": loader(0), "far": []}})

    def test_may_be_left_alone(self) -> None:
        assert train(StartupCheckHook(loaders=False), test_loader=[]).bus.current.outcome == "finished"


class TestGradients:
    def test_that_are_missing_at_the_first_update_are_reported_once(self, caplog: pytest.LogCaptureFixture) -> None:
        train(StartupCheckHook(), accumulate=2, epochs=2)

        assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
            "startup_check: 2 parameters have no gradient at the first update, so they do not learn: unused.weight, "
            "unused.bias. Use them in the forward, or freeze them by requires_grad_(False)."
        ]

    def test_of_frozen_parameters_are_not_missed(self, caplog: pytest.LogCaptureFixture) -> None:
        model = Net()
        model.unused.requires_grad_(False)
        train(StartupCheckHook(), model=model)

        assert not caplog.records

    def test_may_be_left_alone(self, caplog: pytest.LogCaptureFixture) -> None:
        train(StartupCheckHook(gradients=False))

        assert not caplog.records


class TestOptimizer:
    def test_without_a_parameter_is_an_error_that_names_it(self) -> None:
        model = Net()

        with pytest.raises(ConfigError, match=r"does not have 2 parameters of the model.*: used\.weight, used\.bias\."):
            train(StartupCheckHook(), model=model, optimizer=torch.optim.SGD(model.unused.parameters(), lr=1.0))

    def test_names_a_few_of_many(self) -> None:
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
        other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)

        with pytest.raises(ConfigError, match=r"8 parameters .* 2\.weight and 3 more\."):
            train(StartupCheckHook(), model=model, optimizer=other)

    def test_need_not_have_frozen_ones(self) -> None:
        model = Net()
        model.unused.requires_grad_(False)
        train(StartupCheckHook(), model=model, optimizer=torch.optim.SGD(model.used.parameters(), lr=1.0))

    def test_may_be_left_alone(self) -> None:
        bus, model = HookBus([StartupCheckHook(OFF)]), Net()
        with bus.run(model=model, optimizer=torch.optim.SGD(model.used.parameters(), lr=1.0)) as run:
            bus.emit("before_train_iter")

        assert run.outcome == "finished"
