"""Tests of the device synchronizations that are counted in hooks."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from hookbus.testing.synchronizations import CUDA_WARNING, SynchronizationCounter

if TYPE_CHECKING:
    from collections.abc import Callable

    from hookbus.testing.spans import Synchronization

one, many = torch.ones(()), torch.ones(3)


def count(work: Callable[[], object]) -> list[Synchronization]:
    events: list[Synchronization] = []
    counter = SynchronizationCounter(count.__code__, events)
    with counter.active():
        counter.enter("a", "after_train")
        try:
            work()
        finally:
            counter.exit()
        one.item()
    return events


READING: dict[str, Callable[[], object]] = {
    "item": lambda: one.item(),
    "tolist": lambda: many.tolist(),
    "float": lambda: float(one),
    "int": lambda: int(one),
    "bool": lambda: one > 0 or None,
    "format": lambda: f"{one:.2f}",
    "numpy": lambda: many.numpy(),
    "array": lambda: np.asarray(many),
    "cpu": lambda: many.cpu(),
    "to": lambda: many.to("cpu"),
    "to device": lambda: many.to(device=torch.device("cpu")),
    "nonzero": lambda: torch.nonzero(many),
    "mask": lambda: many[torch.tensor([True, False, True])],
    "index": lambda: [1, 2][torch.tensor(1)],
    "contains": lambda: 1 in many,
    "equal": lambda: torch.equal(many, many),
}


@pytest.mark.parametrize("name", READING)
def test_reading_a_tensor_on_the_host_is_counted_once(name: str) -> None:
    (event,) = count(READING[name])
    assert (event.hook, event.point, event.place.file) == ("a", "after_train", __file__)
    assert event.place.text.startswith(f'"{name}": lambda')


def test_other_operations_are_not_counted() -> None:
    def work() -> None:
        many.add(1).sum()
        many[1:] * many[torch.tensor([0, 2])].sum()
        many.to("cpu", non_blocking=True)
        many.to(torch.float64)
        many.to("cpu", torch.float64, True)

    assert count(work) == []


def test_warnings_of_cuda_are_counted_within_hooks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = [0]
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr("torch.cuda.set_sync_debug_mode", modes.append)

    def work() -> None:
        for _ in range(2):
            warnings.warn(f"{CUDA_WARNING} (Triggered internally)", stacklevel=1)
        one.item()  # PyTorch itself reports those of the device

    shown: list[Any] = []
    with warnings.catch_warnings():
        monkeypatch.setattr("warnings.showwarning", lambda message, *_, **__: shown.append(str(message)))
        events = count(work)
        with pytest.warns(UserWarning, match="another"):
            count(lambda: warnings.warn("another", stacklevel=1))
    assert [event.place.text for event in events] == [
        'warnings.warn(f"{CUDA_WARNING} (Triggered internally)", stacklevel=1)'
    ] * 2
    assert modes == [0, "warn", 0, "warn", 0]
    assert shown == []


def test_calls_nest() -> None:
    events: list[Synchronization] = []
    counter = SynchronizationCounter(count.__code__, events)
    counter.enter("outer", "after_train")
    counter.enter("inner", "log_scalars")
    one.item()
    counter.exit()
    one.item()
    counter.exit()
    one.item()
    assert [(event.hook, event.point) for event in events] == [("inner", "log_scalars"), ("outer", "after_train")]
