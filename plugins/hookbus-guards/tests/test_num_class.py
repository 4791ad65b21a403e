from __future__ import annotations

import logging
import re
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from hookbus import HookBus, Trainer
from hookbus.errors import ConfigError, HookError
from hookbus.testing import RecordingBus, check_hook
from hookbus_guards import NumClassCheckHook


class PersonDataset(Dataset[Any]):
    def __init__(self, classes: Any) -> None:
        self.metainfo = {"classes": classes}

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return torch.ones(2), 0


class Net(nn.Module):
    def __init__(self, num_classes: int, declared: Any = ...) -> None:
        super().__init__()
        self.bbox_head = nn.Linear(2, num_classes)
        self.bbox_head.num_classes = num_classes if declared is ... else declared

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.bbox_head(inputs)  # type: ignore[no-any-return]


def check(model: nn.Module, *hooks: Any, **loaders: Any) -> None:
    with HookBus(hooks or [NumClassCheckHook()]).run(model=model, **loaders):
        pass


def test_hook_passes_the_conformance_checks() -> None:
    check_hook(NumClassCheckHook)


@pytest.mark.parametrize("classes", ["person", b"person"])
def test_class_names_as_a_string_are_an_error(classes: Any) -> None:
    message = f"of the train data (PersonDataset) must be a list of names, got {classes!r}. Set [{classes!r}]."
    with pytest.raises(ConfigError, match=re.escape(message)):
        check(Net(6), train_loader=DataLoader(PersonDataset(classes)))


def test_equal_class_counts_pass() -> None:
    check(Net(1), train_loader=DataLoader(PersonDataset(("person",))), val_loader=DataLoader(PersonDataset(["person"])))


def test_different_class_counts_are_an_error() -> None:
    message = r"the train data \(PersonDataset\) has 1 classes, but bbox_head \(Linear\) has num_classes 6\."
    with pytest.raises(ConfigError, match=message):
        check(Net(6), train_loader=DataLoader(PersonDataset(("person",))))


class Count(IntEnum):
    SIX = 6


@pytest.mark.parametrize(
    "number",
    [np.int64(6), np.uint8(6), np.array(6), torch.tensor(6), torch.tensor([6], dtype=torch.uint8), Count.SIX],
    ids=repr,
)
def test_class_count_of_any_integer_type_is_compared(number: Any) -> None:
    with pytest.raises(ConfigError, match=r"bbox_head \(Linear\) has num_classes 6\."):
        check(Net(6, number), train_loader=DataLoader(PersonDataset(("person",))))
    check(Net(6, number), train_loader=DataLoader(PersonDataset(list("abcdef"))))


@pytest.mark.parametrize(
    "number",
    [True, np.bool_(True), torch.tensor(True), 6.0, torch.tensor(6.0), torch.zeros(2, dtype=torch.long), "6", None],
    ids=repr,
)
def test_attribute_that_is_no_class_count_is_ignored(number: Any) -> None:
    check(Net(6, number), train_loader=DataLoader(PersonDataset(("person",))))


def test_classes_of_the_innermost_dataset_are_compared() -> None:
    class Defaults(Subset[Any]):
        metainfo = {"classes": ("a", "b", "c")}  # noqa: RUF012

    inner = Defaults(ConcatDataset([PersonDataset(("person",)), PersonDataset(("person",))]), [0, 1])
    check(Net(1), train_loader=DataLoader(inner))
    with pytest.raises(ConfigError, match="has 1 classes"):
        check(Net(3), train_loader=DataLoader(inner))


def test_all_mismatches_are_reported_at_once_before_training() -> None:
    bus = RecordingBus()
    trainer = Trainer(
        Net(2),
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
    wrapper = nn.DataParallel(Net(1))
    wrapper.num_classes = 80  # type: ignore[assignment]

    check(wrapper, train_loader=DataLoader(PersonDataset(("person",))))


def test_excluded_modules_are_ignored() -> None:
    check(Net(6), NumClassCheckHook(exclude=["head"]), train_loader=DataLoader(PersonDataset(["person"])))


def test_dataset_without_class_names_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hookbus"):
        check(Net(6), train_loader=DataLoader(PersonDataset(None)))

    assert "num_class_check: the train data declares no classes, so the class count is not checked." in caplog.text


def test_missing_model_is_an_error() -> None:
    with (
        pytest.raises(HookError, match="Pass `model` to the run"),
        HookBus([NumClassCheckHook()]).run(),
    ):
        pass
