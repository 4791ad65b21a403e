from __future__ import annotations

import logging
import re
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from hookbus import HookBus, Trainer
from hookbus.errors import ConfigError, HookError, LoopError
from hookbus.testing import RecordingBus, check_hook, fake_training
from hookbus_guards import NumClassCheckHook, StartupCheckHook
from hookbus_guards.startup import invalid_labels

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
    defaults: dict[str, Any] = {
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss_fn": functional.cross_entropy,
        "train_loader": loader(0, 1, 2),
        "epochs": 1,
        "work_dir": None,
        "hooks": [hook],
        "default_hooks": False,
        "device": "cpu",
    }
    trainer = Trainer(model, **{**defaults, **options})
    trainer.fit()
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, OFF, {"num_classes": 2}])
def test_hook_passes_the_conformance_checks(settings: dict[str, Any]) -> None:
    check_hook(StartupCheckHook, **settings)


class TestLabels:
    def test_labels_outside_the_class_range_are_an_error(self) -> None:
        with pytest.raises(
            LoopError, match=r"iteration 2 contains labels outside the valid class range 0 to 2, got 3\."
        ):
            train(StartupCheckHook(), train_loader=loader(0, 3))

    def test_labels_are_checked_in_the_first_iterations_only(self) -> None:
        with pytest.raises(IndexError):  # raised by the loss
            train(StartupCheckHook(label_batches=1), train_loader=loader(0, 3))

    def test_labels_are_compared_with_the_configured_class_count(self) -> None:
        with pytest.raises(LoopError, match="outside the valid class range 0 to 1, got 2"):
            train(StartupCheckHook(num_classes=2))

    def test_labels_are_compared_with_the_data_if_the_model_has_no_num_classes(self) -> None:
        data = TensorDataset(torch.ones(2, 2), torch.tensor([0, 2]))
        data.classes = ["a", "b"]  # type: ignore[attr-defined]

        with pytest.raises(LoopError, match="outside the valid class range 0 to 1, got 2"):
            train(StartupCheckHook(optimizer=False), model=nn.Linear(2, 3), train_loader=DataLoader(data, batch_size=2))

    def test_labels_are_not_checked_if_the_class_count_is_unknown(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "hookbus"):
            fake_training([StartupCheckHook()])

        assert "the number of classes is unknown" in caplog.text

    def test_labels_equal_to_ignore_index_are_valid(self) -> None:
        train(StartupCheckHook(), train_loader=[(torch.ones(2, 2), torch.tensor([0, -100]))])

    def test_label_check_can_be_disabled(self) -> None:
        with pytest.raises(IndexError):
            train(StartupCheckHook(labels=False), train_loader=loader(3))


class TestLoaders:
    @pytest.mark.parametrize("name", ["val_loader", "test_loader"])
    def test_loaders_without_batches_are_an_error_before_training(self, name: str) -> None:
        empty = DataLoader(TensorDataset(torch.ones(3, 2)), batch_size=4, drop_last=True)

        with pytest.raises(LoopError, match=rf"The {name} has no batches: .* `drop_last`"):
            train(StartupCheckHook(), **{name: empty})
        with pytest.raises(LoopError, match=rf"The {name} 'far' has no batches"):
            train(StartupCheckHook(), **{name: {"near": loader(0), "far": []}})

    def test_loader_check_can_be_disabled(self) -> None:
        assert train(StartupCheckHook(loaders=False), test_loader=[]).bus.current.outcome == "finished"


class TestGradients:
    def test_missing_gradients_at_the_first_step_are_reported_once(self, caplog: pytest.LogCaptureFixture) -> None:
        train(StartupCheckHook(), accumulate=2, epochs=2)

        assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
            "startup_check: 2 trainable parameters have no gradient at the first optimizer step and are not trained: "
            "unused.weight, unused.bias. Use them in the forward pass, or freeze them with requires_grad_(False)."
        ]

    def test_missing_gradients_of_frozen_parameters_are_not_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        model = Net()
        model.unused.requires_grad_(False)
        train(StartupCheckHook(), model=model)

        assert not caplog.records

    def test_gradient_check_can_be_disabled(self, caplog: pytest.LogCaptureFixture) -> None:
        train(StartupCheckHook(gradients=False))

        assert not caplog.records


class TestOptimizer:
    def test_parameters_missing_from_the_optimizer_are_an_error(self) -> None:
        model = Net()

        with pytest.raises(ConfigError, match=r"missing 2 trainable parameters .*: used\.weight, used\.bias\."):
            train(StartupCheckHook(), model=model, optimizer=torch.optim.SGD(model.unused.parameters(), lr=1.0))

    def test_error_lists_at_most_5_parameters(self) -> None:
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
        other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)

        with pytest.raises(ConfigError, match=r"8 trainable parameters .* 2\.weight and 3 more\."):
            train(StartupCheckHook(), model=model, optimizer=other)

    def test_frozen_parameters_may_be_missing_from_the_optimizer(self) -> None:
        model = Net()
        model.unused.requires_grad_(False)
        train(StartupCheckHook(), model=model, optimizer=torch.optim.SGD(model.used.parameters(), lr=1.0))

    def test_optimizer_check_can_be_disabled(self) -> None:
        bus, model = HookBus([StartupCheckHook(OFF)]), Net()
        with bus.run(model=model, optimizer=torch.optim.SGD(model.used.parameters(), lr=1.0)) as run:
            bus.emit("before_train_iter")

        assert run.outcome == "finished"


class PersonDataset(Dataset[Any]):
    def __init__(self, classes: Any) -> None:
        self.metainfo = {"classes": classes}

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return torch.ones(2), 0


class HeadNet(nn.Module):
    def __init__(self, num_classes: int, declared: Any = ...) -> None:
        super().__init__()
        self.bbox_head = nn.Linear(2, num_classes)
        self.bbox_head.num_classes = num_classes if declared is ... else declared

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.bbox_head(inputs)  # type: ignore[no-any-return]


def check(model: nn.Module, *hooks: Any, **loaders: Any) -> None:
    with HookBus(hooks or [NumClassCheckHook()]).run(model=model, **loaders):
        pass


@pytest.mark.slow
def test_num_class_check_passes_the_conformance_checks() -> None:
    check_hook(NumClassCheckHook)


@pytest.mark.parametrize("classes", ["person", b"person"])
def test_class_names_as_a_string_are_an_error(classes: Any) -> None:
    message = f"of the train data (PersonDataset) must be a list of names, got {classes!r}. Set [{classes!r}]."
    with pytest.raises(ConfigError, match=re.escape(message)):
        check(HeadNet(6), train_loader=DataLoader(PersonDataset(classes)))


def test_equal_class_counts_pass() -> None:
    check(
        HeadNet(1),
        train_loader=DataLoader(PersonDataset(("person",))),
        val_loader=DataLoader(PersonDataset(["person"])),
    )


def test_different_class_counts_are_an_error() -> None:
    message = r"the train data \(PersonDataset\) has 1 classes, but bbox_head \(Linear\) has num_classes 6\."
    with pytest.raises(ConfigError, match=message):
        check(HeadNet(6), train_loader=DataLoader(PersonDataset(("person",))))


class Count(IntEnum):
    SIX = 6


@pytest.mark.parametrize(
    "number",
    [np.int64(6), np.uint8(6), np.array(6), torch.tensor(6), torch.tensor([6], dtype=torch.uint8), Count.SIX],
    ids=repr,
)
def test_class_count_of_any_integer_type_is_compared(number: Any) -> None:
    with pytest.raises(ConfigError, match=r"bbox_head \(Linear\) has num_classes 6\."):
        check(HeadNet(6, number), train_loader=DataLoader(PersonDataset(("person",))))
    check(HeadNet(6, number), train_loader=DataLoader(PersonDataset(list("abcdef"))))


@pytest.mark.parametrize(
    "number",
    [True, np.bool_(True), torch.tensor(True), 6.0, torch.tensor(6.0), torch.zeros(2, dtype=torch.long), "6", None],
    ids=repr,
)
def test_attribute_that_is_no_class_count_is_ignored(number: Any) -> None:
    check(HeadNet(6, number), train_loader=DataLoader(PersonDataset(("person",))))


def test_classes_of_the_innermost_dataset_are_compared() -> None:
    class Defaults(Subset[Any]):
        metainfo = {"classes": ("a", "b", "c")}  # noqa: RUF012

    inner = Defaults(ConcatDataset([PersonDataset(("person",)), PersonDataset(("person",))]), [0, 1])
    check(HeadNet(1), train_loader=DataLoader(inner))
    with pytest.raises(ConfigError, match="has 1 classes"):
        check(HeadNet(3), train_loader=DataLoader(inner))


def test_all_mismatches_are_reported_at_once_before_training() -> None:
    bus = RecordingBus()
    trainer = Trainer(
        HeadNet(2),
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0),
        train_loader=DataLoader(PersonDataset(["a", "b", "c"])),
        val_loader={"one": DataLoader(PersonDataset(["a", "b"])), "two": DataLoader(PersonDataset("ab"))},
        epochs=1,
        work_dir=None,
        hooks=[NumClassCheckHook()],
        default_hooks=False,
    )
    with pytest.raises(ConfigError) as caught:
        trainer.fit()

    assert [problem.partition(": ")[2][:30] for problem in caught.value.problems] == [
        "the train data (PersonDataset)",
        "the classes of the val data 't",
    ]
    assert bus.emitted_points == []


def test_num_classes_of_the_unwrapped_model_are_compared() -> None:
    wrapper = nn.DataParallel(HeadNet(1))
    wrapper.num_classes = 80  # type: ignore[assignment]

    check(wrapper, train_loader=DataLoader(PersonDataset(("person",))))


def test_excluded_modules_are_ignored() -> None:
    check(HeadNet(6), NumClassCheckHook(exclude=["head"]), train_loader=DataLoader(PersonDataset(["person"])))


def test_dataset_without_class_names_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hookbus"):
        check(HeadNet(6), train_loader=DataLoader(PersonDataset(None)))

    assert "num_class_check: the train data declares no classes, so the class count is not checked." in caplog.text


def test_missing_model_is_an_error() -> None:
    with (
        pytest.raises(HookError, match="Pass `model` to the run"),
        HookBus([NumClassCheckHook()]).run(),
    ):
        pass


@pytest.mark.parametrize(
    ("labels", "invalid"),
    [([0, 1, 2], []), ([0, 3, 7, 3], [3, 7]), ([-1, 2], [-1]), ([-100, 0], []), ([], [])],
)
def test_labels_outside_the_class_range_are_invalid(labels: list[int], invalid: list[int]) -> None:
    assert invalid_labels(torch.tensor(labels, dtype=torch.long), 3) == invalid


def test_ignore_index_is_valid() -> None:
    mask = torch.tensor([[0, 255], [2, 254]], dtype=torch.uint8)

    assert invalid_labels(mask, 3, ignore_index=255) == [254]


@pytest.mark.parametrize("targets", [None, [5], torch.ones(2), torch.tensor([True])])
def test_targets_that_are_no_integer_tensor_contain_no_labels(targets: Any) -> None:
    assert invalid_labels(targets, 1) == []
