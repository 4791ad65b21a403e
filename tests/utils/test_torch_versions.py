from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hookbus import HookBus
from hookbus._utils.torch_versions import FEATURES, is_gloo_thread, is_torch, require_torch
from hookbus.errors import ConfigError
from tests.sharded_models import single_process_group


@pytest.mark.parametrize(
    ("installed", "required", "expected"),
    [("2.10.0", "2.9", True), ("2.9.0a0+git1", "2.9", True), ("2.9.1+cpu", "2.9", True), ("2.8.0+cu126", "2.9", False)],
)
def test_versions_are_compared_as_numbers(
    monkeypatch: pytest.MonkeyPatch, installed: str, required: str, expected: bool
) -> None:
    monkeypatch.setattr(torch, "__version__", installed)
    assert is_torch(required) is expected


def test_feature_of_newer_torch_is_refused_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.6.0+cu124")
    with pytest.raises(ConfigError) as caught:
        require_torch("distributed: fsdp2")
    assert str(caught.value) == (
        "distributed: fsdp2 requires torch 2.9 or newer, got 2.6.0. Update torch, or set distributed: ddp."
    )


@pytest.mark.parametrize("feature", FEATURES)
def test_feature_is_available_from_its_version_on(monkeypatch: pytest.MonkeyPatch, feature: str) -> None:
    monkeypatch.setattr(torch, "__version__", FEATURES[feature][0])
    require_torch(feature)


def test_run_of_a_model_sharded_by_the_user_requires_its_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with single_process_group(tmp_path):
        model = nn.Linear(2, 1)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        monkeypatch.setattr(torch, "__version__", "2.6.0")
        with pytest.raises(ConfigError, match=r"^fully_shard requires torch 2\.9 or newer, got 2\.6"):
            HookBus().run(model=model).__enter__()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux lists the threads of a process")
def test_threads_of_a_process_group_are_found_and_no_thread_of_python(tmp_path: Path) -> None:
    tasks = Path("/proc/self/task")
    before = {task.name for task in tasks.glob("*")}
    with single_process_group(tmp_path):
        dist.all_reduce(torch.ones(1))
        threads = {task.name for task in tasks.glob("*") if is_gloo_thread(task)}
    assert threads - before
    assert not threads & {str(thread.native_id) for thread in threading.enumerate()}
