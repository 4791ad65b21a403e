from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from hookbus import HookBus, Trainer
from hookbus.errors import ConfigError, HookError
from hookbus.testing import RecordingBus, check_hook
from hookbus_guards import NumClassCheckHook


class People(Dataset[Any]):
    def __init__(self, classes: Any) -> None:
        self.metainfo = {"classes": classes}

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return torch.ones(2), 0


class Net(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.bbox_head = nn.Linear(2, num_classes)
        self.bbox_head.num_classes = num_classes  # type: ignore[assignment]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.bbox_head(inputs)  # type: ignore[no-any-return]


def look(model: nn.Module, *hooks: Any, **loaders: Any) -> None:
    with HookBus(hooks or [NumClassCheckHook()]).run(model=model, **loaders):
        pass


def test_it_keeps_what_every_hook_promises() -> None:
    check_hook(NumClassCheckHook)


@pytest.mark.parametrize("given", ["person", b"person"])
def test_a_text_is_no_list_of_names(given: Any) -> None:
    message = f"of the train data (People) are the text {given!r}: write a list of names, [{given!r}]"
    with pytest.raises(ConfigError, match=re.escape(message)):
        look(Net(6), train_loader=DataLoader(People(given)))


def test_equal_numbers_pass() -> None:
    look(Net(1), train_loader=DataLoader(People(("person",))), val_loader=DataLoader(People(["person"])))


def test_other_numbers_are_an_error_with_both_of_them() -> None:
    message = r"the train data \(People\) has 1 classes, but bbox_head \(Linear\) has num_classes 6: make them equal"
    with pytest.raises(ConfigError, match=message):
        look(Net(6), train_loader=DataLoader(People(("person",))))


def test_a_data_set_inside_wrappers_is_the_one_that_counts() -> None:
    class Defaults(Subset[Any]):
        metainfo = {"classes": ("a", "b", "c")}  # noqa: RUF012

    inner = Defaults(ConcatDataset([People(("person",)), People(("person",))]), [0, 1])
    look(Net(1), train_loader=DataLoader(inner))
    with pytest.raises(ConfigError, match="has 1 classes"):
        look(Net(3), train_loader=DataLoader(inner))


def test_all_mistakes_are_told_at_once_before_anything_is_trained() -> None:
    bus = RecordingBus()
    trainer = Trainer(
        Net(2),
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0),
        train_loader=DataLoader(People(["a", "b", "c"])),
        val_loader={"one": DataLoader(People(["a", "b"])), "two": DataLoader(People("ab"))},
        epochs=1,
        work_dir=None,
        hooks=[NumClassCheckHook()],
        default_hooks=False,
    )
    with pytest.raises(ConfigError) as caught:
        trainer.fit()

    assert [problem.partition(": ")[2][:30] for problem in caught.value.problems] == [
        "the train data (People) has 3 ",
        "the classes of the val data 't",
    ]
    assert bus.fired == []


def test_the_model_inside_a_wrapper_is_the_one_that_counts() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module
            self.num_classes = 80

    look(Wrapper(Net(1)), train_loader=DataLoader(People(("person",))))


def test_modules_may_be_left_out() -> None:
    look(Net(6), NumClassCheckHook(exclude=["head"]), train_loader=DataLoader(People(["person"])))


def test_data_without_names_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hookbus"):
        look(Net(6), train_loader=DataLoader(People(None)))

    assert "num_class_check: the train data declares no classes, so their number is not checked." in caplog.text


def test_without_a_model_there_is_nothing_to_compare() -> None:
    with (
        pytest.raises(HookError, match="compares the data with the model: give model= to the run"),
        HookBus([NumClassCheckHook()]).run(),
    ):
        pass
