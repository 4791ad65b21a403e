"""Every hook declares what it needs from another trainer: nothing that it can do without, and nothing less."""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus, Needs, discovery
from hookbus._utils.packages import package_label
from hookbus.bridge import Bridge, Capabilities
from hookbus.errors import ConfigError, HookbusError
from hookbus_logger import read_jsonl

from .host_loop import OPTIONAL_POINTS, REASON, Check, HostLoop, Layered, OtherRank, build_capabilities, iter_reduced
from .test_plugins import PLUGINS

EVERYTHING = Capabilities(
    host="OtherTrainer",
    bridge="unused:Unused",
    requests=dict.fromkeys(("stop", "stop_epoch", "save", "validation", "skip"), "now"),
    actions=("train_step",),
    accumulation=True,
    data=True,
    checkpoints=("host", "hookbus"),
)

BOXES = {"boxes": torch.tensor([[0.0, 0.0, 2.0, 2.0]]), "labels": torch.tensor([1])}
IMAGES = torch.linspace(0.1, 1, 32).reshape(2, 1, 4, 4)
DETECTION = [(IMAGES, [BOXES, BOXES])] * 2
SEGMENTATION = [(IMAGES, torch.ones(2, 4, 4, dtype=torch.long))] * 2


@functools.cache
def load_class(name: str) -> type[Hook]:
    return next(discovery.load_entry(plugin) for plugin in PLUGINS if plugin.name == name)


@dataclass(frozen=True)
class Case:
    """A hook with settings, and what it does in a loop.

    Args:
        name: Entry point.
        works: Whether the result of the hook exists after the training.
        reports: Text of the error or the warning that a hook reports as its result.
        settings: Settings of the hook.
        loop: Keyword arguments of the loop.
        prepare: Called with the hook.
    """

    name: str
    works: Check
    settings: Mapping[str, Any] = field(default_factory=dict)
    loop: Mapping[str, Any] = field(default_factory=dict)
    prepare: Callable[[Any], object] = lambda hook: None
    reports: str = ""

    def __str__(self) -> str:
        return "-".join([self.name, *map(str, self.settings)])

    def build(self) -> Hook:
        hook: Hook = load_class(self.name)(**self.settings)
        self.prepare(hook)
        return hook


def always(loop: HostLoop) -> bool:
    return True


def read_rows(loop: HostLoop) -> list[Any]:
    return list(read_jsonl(loop.work_dir / "logs/metrics.jsonl"))


def is_stopped(loop: HostLoop) -> bool:
    return loop.run.outcome in ("stopped", "preempted") and loop.is_stopped


def send_signal(loop: HostLoop) -> None:
    if loop.run.iters_done == 1:
        signal.raise_signal(signal.SIGUSR1)


def record_collection(loop: HostLoop) -> None:
    loop.is_collecting = gc.isenabled()  # type: ignore[attr-defined]


def stop_clock(hook: Any) -> None:
    hook.timer = itertools.count().__next__  # one second per call


def negate(image: torch.Tensor) -> torch.Tensor:
    return -image


def invalid_loss(loop: HostLoop) -> None:
    if loop.run.iters_done == 2:
        with torch.no_grad():
            loop.model.weight.fill_(float("nan"))


NAN = {"during": invalid_loss}
UNUSED = {"unused": True}
EXPONENTIAL = {"type": "ExponentialLR", "gamma": 0.5}
PLATEAU = {"type": "ReduceLROnPlateau", "patience": 0, "factor": 0.5, "monitor": "val/loss"}

CASES = [
    Case("accumulation", lambda loop: loop.steps == [1, 2, 2, 3], {"schedule": {2: 2}}),
    Case("accumulation", lambda loop: loop.steps == [0, 1, 1, 2], {"schedule": {1: 2}, "unit": "iter"}),
    Case("batch_size_finder", lambda loop: loop.run.require("batch_size_finder").size == 4, {"max_val": 4}),
    Case(
        "batch_size_finder",
        lambda loop: loop.run.train_loader.batch_size == 4 and loop.run.iters_done == 2,
        {"max_val": 4, "apply": True},
    ),
    Case("check_invalid_loss", always, {"interval": 1}, NAN, reports="The loss is not finite at iteration 3"),
    Case(
        "check_invalid_loss",
        always,
        {"interval": 1, "before_step": True},
        NAN,
        reports="The loss is not finite at iteration 3",
    ),
    Case(
        "check_invalid_loss",
        lambda loop: loop.updates == 2,
        {"interval": 1, "policy": "skip"},
        NAN,
        reports="The micro-batch is skipped",
    ),
    Case(
        "check_invalid_loss",
        lambda loop: loop.run.outcome == "aborted" and loop.is_stopped,
        {"interval": 1, "policy": "stop"},
        NAN,
    ),
    Case("checkpoint", lambda loop: loop.has_files("epoch_2.pth"), {"save_last": False, "save_best": False}),
    Case(
        "checkpoint", lambda loop: loop.has_files("iter_4.pth"), {"by_epoch": False, "interval": 2, "save_best": False}
    ),
    Case("checkpoint", lambda loop: loop.has_files("best_*.pth"), {"save_best": "auto", "interval": None}),
    Case(
        "checkpoint",
        lambda loop: loop.has_files("best_train_loss_epoch_*.pth"),
        {"save_best": "train/loss", "save_top_k": -1, "interval": None},
    ),
    Case("dist_eval", lambda loop: "val/loss" in loop.run.metrics.results, {"save_best": False}),
    Case("dist_sampler_seed", lambda loop: loop.epochs_of_sampler == [0, 0, 1, 1]),
    Case("csv", lambda loop: loop.has_files("metrics.csv"), {"interval": 1}),
    Case("early_stopping", is_stopped, {"monitor": "val/loss", "patience": 1}),
    Case("early_stopping", is_stopped, {"monitor": "train/loss", "patience": 1, "min_delta": 100}),
    Case("ema", lambda loop: loop.hook.average is not None),
    Case("ema", lambda loop: loop.hook.average is not None, {"start_step": 1}),
    Case("ema", lambda loop: loop.hook.average is not None, {"start_epoch": 1}),
    Case("empty_cache", lambda loop: len(loop.released) == 2, {"before_epoch": True, "after_epoch": False}),
    Case("empty_cache", lambda loop: len(loop.released) == 2),
    Case("empty_cache", lambda loop: len(loop.released) == 4, {"after_epoch": False, "after_iter": True}),
    Case("eval", lambda loop: "val/loss" in loop.run.metrics.results, {"save_best": False}),
    Case("eval", lambda loop: "val/loss" in loop.run.metrics.results, {"save_best": False, "by_epoch": False}),
    Case("feature_map", lambda loop: loop.has_files("*conv*.png"), {"frequency": 2}),
    Case("freeze", lambda loop: not loop.has_changed("weight"), {"modules": ["weight"], "keep_statistics": False}),
    Case("freeze", lambda loop: not loop.has_changed("norm.running_mean"), {"modules": ["norm"]}),
    Case(
        "freeze",
        lambda loop: torch.equal(loop.weights[0]["weight"], loop.weights[1]["weight"]) and loop.has_changed("weight"),
        {"modules": ["weight"], "keep_statistics": False, "until_iter": 2},
    ),
    Case(
        "freeze",
        lambda loop: torch.equal(loop.weights[0]["weight"], loop.weights[1]["weight"]) and loop.has_changed("weight"),
        {"modules": ["weight"], "keep_statistics": False, "until_epoch": 1},
    ),
    Case("gc", lambda loop: not loop.is_collecting, {"interval": 1}, {"during": record_collection}),
    Case("gradient_flow", lambda loop: "gradients/weight/l2" in loop.logged, {"frequency": 1}),
    Case("iter_timer", lambda loop: "time/iter" in loop.logged, {"interval": 1}),
    Case(
        "iter_timer",
        lambda loop: "throughput/flops_per_second" in loop.logged,
        {"interval": 1, "flops_per_batch": "measure"},
    ),
    Case("jsonl", lambda loop: {row["kind"] for row in read_rows(loop)} >= {"scalars", "config"}, {"interval": 1}),
    Case("logger", lambda loop: "finished" in loop.output, {"interval": 1}),
    Case(
        "lr_finder",
        lambda loop: loop.has_files("lr_finder.png") and len(loop.run.require("lr_finder").rates) == 4,
        {"num_training_steps": 4, "early_stop_threshold": None, "max_lr": 1e-3},
    ),
    Case("mean_teacher", lambda loop: loop.has_changed("teacher.weight"), {"momentum": 0.5}),
    Case("memory_profiler", lambda loop: "memory/process_gb" in loop.logged, {"interval": 1}),
    Case("mlflow", lambda loop: loop.has_files("*.db")),
    Case("mlflow", lambda loop: loop.has_files("host.pt"), {"log_model": True}),
    Case("model_summary", lambda loop: "Conv2d" in loop.output),
    Case("num_class_check", always, reports="has 3 classes, but the model (Layered) has num_classes 2"),
    Case(
        "out_of_memory", always, {}, {"failure": torch.OutOfMemoryError("full")}, reports="The device is out of memory"
    ),
    Case("param_scheduler", lambda loop: loop.rates == [0.1, 0.1, 0.05, 0.05], {"schedulers": EXPONENTIAL}),
    Case(
        "param_scheduler",
        lambda loop: loop.rates == [0.1, 0.05, 0.025, 0.0125],
        {"schedulers": EXPONENTIAL, "interval": "step"},
    ),
    Case("param_scheduler", lambda loop: loop.optimizer.param_groups[0]["lr"] == 0.05, {"schedulers": PLATEAU}),
    Case("pipeline_switch", lambda loop: loop.inputs[2] < 0, {"switch_epoch": 1, "switch_pipeline": negate}),
    Case("pipeline_switch", lambda loop: loop.inputs[1] < 0, {"switch_iter": 1, "switch_pipeline": negate}),
    Case("preemption", is_stopped, {}, {"during": send_signal}),
    Case("profiler", lambda loop: "Time breakdown" in loop.output, {"profile_iters": 2}),
    Case("progress", lambda loop: loop.hook.get_progress(loop.run).done > 0),
    Case("runtime_info", lambda loop: "versions" in loop.log),
    Case(
        "seg_visualization",
        lambda loop: loop.has_files("*.png"),
        {"interval": 1, "draw_pred": False},
        {"batches": SEGMENTATION},
    ),
    Case(
        "det_visualization",
        lambda loop: loop.has_files("*.png"),
        {"interval": 1, "draw_pred": False},
        {"batches": DETECTION},
    ),
    Case("set_epoch_info", lambda loop: loop.model.epochs == [0, 1]),
    Case(
        "startup_check", always, {"num_classes": 1, "gradients": False, "optimizer": False}, reports="valid class range"
    ),
    Case(
        "startup_check",
        always,
        {"labels": False, "optimizer": False},
        UNUSED,
        reports="1 trainable parameters have no gradient",
    ),
    Case(
        "startup_check",
        always,
        {"labels": False, "gradients": False},
        UNUSED,
        reports="is missing 1 trainable parameters",
    ),
    Case("swa", lambda loop: loop.hook.average is not None, {"swa_epoch_start": 1}),
    Case("swa", lambda loop: loop.hook.average is not None, {"swa_epoch_start": 1, "swa_lrs": 0.1}),
    Case("sync_buffers", lambda loop: loop.model.mean.item() < 1, {}, {"ranks": OtherRank()}),
    Case("sync_metrics", lambda loop: loop.losses[0] < 0.5, {}, {"ranks": OtherRank()}),
    Case("sync_metrics", lambda loop: loop.accuracies[0] < 0.5, {"metrics": ["accuracy"]}, {"ranks": OtherRank()}),
    Case(
        "sync_norm",
        lambda loop: hasattr(loop.model, "norm") and loop.model.norm.weight.item() < 0.8,
        {},
        {"ranks": OtherRank()},
    ),
    Case("sync_random_size", lambda loop: loop.sizes[0] is not None),
    Case("system_monitor", lambda loop: any(name.startswith("system/") for name in loop.logged)),
    Case("tensorboard", lambda loop: loop.has_files("events.out*"), {"interval": 1}),
    Case("time_limit", is_stopped, {"max_time": "2s", "per_run": True}, prepare=stop_clock),
    Case("time_tracking", lambda loop: "time/epoch" in loop.logged),
    Case("visualization", lambda loop: loop.has_files("*predictions*.png"), {"interval": 1}),
    Case("visualization", lambda loop: loop.has_files("*.png"), {"interval": 1, "content": ["feature_maps"]}),
    Case("wandb", lambda loop: loop.has_files("*.wandb"), {"mode": "offline"}),
    Case("yolox_lr", lambda loop: loop.rates[0] != loop.rates[-1], {"warmup_epochs": 1, "num_last_epochs": 1}),
    Case(
        "yolox_lr",
        lambda loop: loop.rates[1] != loop.rates[2],
        {"by_epoch": True, "warmup_epochs": 1, "num_last_epochs": 1},
    ),
    Case("yolox_mode_switch", lambda loop: loop.inputs[-1] == 0 and loop.model.use_l1, {"num_last_iters": 1}),
    Case("yolox_mode_switch", lambda loop: loop.inputs[-1] == 0 and loop.model.use_l1, {"num_last_epochs": 1}),
]
"""At least one case of each hook."""


@pytest.fixture
def run_case(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., str]:
    """Return a function that trains with the hook of a case, and returns what did not work."""

    def run(case: Case, offered: Capabilities, claimed: Capabilities | None = None) -> str:
        loop = HostLoop(
            case.build(), offered, tmp_path / str(len(list(tmp_path.iterdir()))), claimed=claimed, **case.loop
        )
        loop.released = count_releases(monkeypatch)
        caplog.clear()
        with caplog.at_level(logging.INFO, "hookbus"):
            error = loop.attempt()
        loop.output, loop.log = capsys.readouterr().out, caplog.text
        problems = [error, *(record.message for record in caplog.records if record.levelno >= logging.WARNING)]
        unexpected = [problem for problem in problems if problem and (not case.reports or case.reports not in problem)]
        has_reported = not case.reports or any(case.reports in problem for problem in problems)
        works = has_reported and not unexpected and case.works(loop)
        return "" if works else "; ".join(unexpected) or "there is no result"

    return run


def count_releases(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Simulate an accelerator, and return a list with an item per release of its cache."""
    calls: list[int] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch, "get_device_module", lambda: SimpleNamespace(empty_cache=lambda: calls.append(1)))
    return calls


SLOW = {"feature_map", "mlflow", "profiler", "system_monitor", "tensorboard", "wandb"}
SLOW |= {"det_visualization", "seg_visualization", "visualization"}
"""Hooks that import or start something that takes long."""


PARAMETERS = [pytest.param(case, marks=[pytest.mark.slow] * (case.name in SLOW)) for case in CASES]


@pytest.mark.parametrize("case", PARAMETERS, ids=str)
def test_hook_works_without_anything_that_it_does_not_declare(case: Case, run_case: Callable[..., str]) -> None:
    assert run_case(case, build_capabilities(case.build())) == ""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_hook_does_not_work_without_any_of_its_needs(case: Case, run_case: Callable[..., str]) -> None:
    for need, reduced in iter_reduced(case.build(), build_capabilities(case.build())):
        assert run_case(case, reduced, EVERYTHING), f"{case.name} works without {need}"


@pytest.mark.parametrize("point", ["after_backward", "before_optimizer_step", "after_train_iter"])
def test_one_point_with_gradients_is_enough_for_gradient_flow(point: str, run_case: Callable[..., str]) -> None:
    (case,) = (case for case in CASES if case.name == "gradient_flow")
    points = {point} - {"after_train_iter"}
    missing = {name: REASON for name in OPTIONAL_POINTS if name not in points}
    assert run_case(case, replace(build_capabilities(case.build()), missing=missing, gradients=(point,))) == ""


class Refusing(Bridge):
    """Bridge of a trainer that never trains."""

    def attach(self) -> None:
        pass


def find_refusals(hook: Hook, capabilities: Capabilities) -> list[str]:
    """Return the messages that refuse a hook at `bus.attach`, at `bus.open`, and during a run."""
    bridge_class = type("Bridge", (Refusing,), {"capabilities": capabilities})
    mode = "hookbus" if hasattr(hook, "plan") else "host"
    messages = []
    with pytest.raises(ConfigError) as caught:
        bridge_class(HookBus([hook]), object(), checkpoints=mode)
    messages.append(str(caught.value))
    host = bridge_class(HookBus(), object(), checkpoints=mode)
    model = Layered()
    options: Any = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=1.0), "epochs": 2}
    with pytest.raises(HookbusError) as refused:
        HookBus([hook]).open(host=host, **options)
    messages.append(str(refused.value))
    bus = HookBus()
    run = bus.open(host=host, **options)
    bus.emit("after_train_iter")
    with pytest.raises(HookbusError) as late:
        bus.register(hook)
    assert hook not in bus.hooks.values()
    run.close()
    return [*messages, str(late.value)]


@pytest.mark.parametrize("case", PARAMETERS, ids=str)
def test_hook_is_refused_without_any_of_its_needs(case: Case) -> None:
    for need, reduced in iter_reduced(case.build(), build_capabilities(case.build())):
        hook = case.build()
        for message in find_refusals(hook, reduced):
            (line,) = (line for line in message.splitlines() if "OtherTrainer" in line)
            assert line.startswith(f"hook {hook.name!r} ({package_label(hook)}): ")
            assert need in line


def test_hook_of_predictions_is_refused_by_every_trainer() -> None:
    hook = load_class("predictions")()
    for message in find_refusals(hook, EVERYTHING):
        assert "'predictions' (hookbus-predictions" in message
        assert "requires after_predict_iter, which OtherTrainer does not emit: a prediction is no part" in message


def test_every_hook_has_a_case() -> None:
    assert {case.name for case in CASES} | {"predictions"} == {plugin.name for plugin in PLUGINS}


def test_every_need_is_declared_by_a_hook() -> None:
    needs = [case.build().needs for case in CASES if case.name not in SLOW]
    declared = {need.name for need in fields(Needs) if any(getattr(entry, need.name) for entry in needs)}
    assert declared == {need.name for need in fields(Needs)}
