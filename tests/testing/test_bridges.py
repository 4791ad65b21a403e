"""Tests of the list of conformance checks; `tests/bridge/test_reference.py` performs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hookbus.bridge import Capabilities
from hookbus.testing import HostTask, bridge_conformance
from hookbus.testing.bridges.probe import Probe
from hookbus.testing.bridges.trainings import Kit
from tests.foreign_trainer import ForeignAdapter


class FailingAdapter:
    """Adapter whose trainer cannot train."""

    def __init__(self, **record: Any) -> None:
        self.capabilities = Capabilities(host="some trainer", bridge="tests.foreign_trainer:ForeignBridge", **record)

    def train(self, *_: Any, **__: Any) -> Any:
        raise OSError("no device")


def test_checks_have_distinct_names() -> None:
    names = list(map(str, bridge_conformance(FailingAdapter())))
    assert len(set(names)) == len(names)
    assert [name for name in names if name.startswith("resume")] == ["resume_host", "resume_after_failure_host"]


def test_resume_is_checked_for_each_owner_of_the_checkpoints() -> None:
    checks = bridge_conformance(FailingAdapter(checkpoints=("host", "hookbus")))
    assert [str(check) for check in checks[-2:]] == ["resume_hookbus", "resume_after_failure_hookbus"]


def test_error_of_the_trainer_is_raised_by_each_check_and_by_all_of_them(tmp_path: Path) -> None:
    checks = bridge_conformance(FailingAdapter())
    with pytest.raises(OSError, match="no device"):
        checks[0](tmp_path)
    with pytest.raises(OSError, match="no device"):
        checks(tmp_path)


def test_record_of_another_bridge_is_not_accepted(tmp_path: Path) -> None:
    checks = {check.name: check for check in bridge_conformance(FailingAdapter())}
    with pytest.raises(AssertionError, match=r"ForeignBridge should have this record as its `capabilities`, got Cap"):
        checks["discovery"](tmp_path)


def test_training_that_several_checks_compare_is_made_once(tmp_path: Path) -> None:
    kit = Kit(ForeignAdapter())
    first, second = kit.pair(tmp_path), kit.pair(tmp_path)
    assert all(observation is other for observation, other in zip(first, second, strict=True))


def test_probe_records_what_the_points_of_a_training_provide(tmp_path: Path) -> None:
    probe = Kit(ForeignAdapter()).train(HostTask(epochs=1), tmp_path).probe
    assert isinstance(probe, Probe)
    (end,) = probe.select("after_train_epoch")
    assert end.counts == (1, 6, 6, 24)
    iterations = [*probe.select("after_train_iter")]
    assert [moment.iteration for moment in iterations] == [0, 1, 2, 3, 4, 5]
    assert all(moment.loss and moment.gradient and moment.has_outputs for moment in iterations)
    assert [tuple(tensor.shape) for tensor in iterations[0].batch or ()] == [(4, 6), (4,)]
    assert [moment.is_averaged for moment in probe.select("before_val", "after_val")] == [True, True]
