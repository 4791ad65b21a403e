"""Cost of one event, compared with hand-written calls (the lower bound) and pluggy.

Run `python -m benchmarks.bench_emit [--rounds 40]`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pluggy
import torch

from benchmarks.measure import compare_to_floor, measure_interleaved, nothing, print_table, report, unrolled_calls
from hookbus import Hook, HookBus, every, hookimpl

COUNTS = (0, 1, 5, 10, 20)


class Listener(Hook):
    def after_render(self, run: Any, step: Any, batch: Any) -> None:
        pass


class ScheduledListener(Hook):
    @hookimpl(when=every(100))
    def after_render(self, run: Any, step: Any, batch: Any) -> None:
        pass


def bus_with(hook: type[Hook], count: int) -> HookBus:
    bus = HookBus()
    bus.declare("after_render", args=("step", "batch"), unit="iter")
    for i in range(count):
        bus.register(hook(name=f"hook{i}"))
    return bus


def hand_written(count: int) -> Callable[[], None]:
    return unrolled_calls([Listener(name=f"hook{i}").after_render for i in range(count)], object(), 1, (1, 2))


def through_pluggy(count: int) -> Callable[[], Any]:
    spec, impl = pluggy.HookspecMarker("bench"), pluggy.HookimplMarker("bench")

    class Specs:
        @spec
        def after_render(self, run, step, batch):  # type: ignore[no-untyped-def]
            pass

    class Plugin:
        @impl
        def after_render(self, run, step, batch):  # type: ignore[no-untyped-def]
            pass

    manager = pluggy.PluginManager("bench")
    manager.add_hookspecs(Specs)
    for _ in range(count):
        manager.register(Plugin())
    run, batch = object(), (1, 2)
    return lambda: manager.hook.after_render(run=run, step=1, batch=batch)


def through_loop(bus: HookBus) -> Callable[[], None]:
    """Return the dispatch path of the loop: a truth test, then the compiled function."""
    calls, batch = bus.calls, (1, 2)

    def fire() -> None:
        if calls.after_render:
            calls.after_render(step=1, batch=batch)

    return fire


def through_emit(bus: HookBus) -> Callable[[], None]:
    emit, batch = bus.emit, (1, 2)
    return lambda: emit("after_render", step=1, batch=batch)  # type: ignore[call-overload]


class EveryIterationHook(Hook):
    def before_train_iter(self, run: Any, batch: Any) -> None:
        pass

    def after_backward(self, run: Any, loss: Any) -> None:
        pass

    def after_train_iter(self, run: Any, batch: Any, outputs: Any) -> None:
        pass


class ScheduledHook(Hook):
    @hookimpl(when=every(50))
    def after_optimizer_step(self, run: Any) -> None:
        pass

    @hookimpl(when=every(50))
    def after_train_iter(self, run: Any, batch: Any, outputs: Any) -> None:
        pass


def ten_hooks() -> list[Any]:
    """Return three hooks that listen at every iteration and seven that listen at every 50th."""
    return [
        *(EveryIterationHook(name=f"each{i}") for i in range(3)),
        *(ScheduledHook(name=f"rare{i}") for i in range(7)),
    ]


def hand_written_iteration(batch: Any) -> Callable[[], None]:
    """Return hand-written calls of an iteration: `if count % 50 == 0` precedes those that are rarely due."""
    hooks = ten_hooks()
    always, rare = hooks[:3], hooks[3:]
    lines = ["def iteration():", "    global count"]
    lines += [f"    always[{i}].before_train_iter(run, batch)" for i in range(3)]
    lines += [f"    always[{i}].after_backward(run, None)" for i in range(3)]
    lines += ["    count += 1"]
    lines += [f"    if count % 50 == 0: rare[{i}].after_optimizer_step(run)" for i in range(7)]
    lines += [f"    always[{i}].after_train_iter(run, batch, None)" for i in range(3)]
    lines += [f"    if count % 50 == 0: rare[{i}].after_train_iter(run, batch, None)" for i in range(7)]
    namespace: dict[str, Any] = {"always": always, "rare": rare, "run": object(), "batch": batch, "count": 0}
    exec("\n".join(lines), namespace)
    return namespace["iteration"]  # type: ignore[no-any-return]


def loop_iteration(batch: Any) -> Callable[[], None]:
    """Return the eight events of an iteration on the dispatch path of the loop; two are points of a package."""
    bus = HookBus()
    for name in ("before_render", "after_render"):
        bus.declare(name, args=("batch",), unit="iter")
    for hook in ten_hooks():
        bus.register(hook)
    for point in ("before_train", "before_epoch", "before_train_epoch"):
        bus.fire(point)
    calls = bus.calls

    def iteration() -> None:
        calls.before_train_iter(batch_idx=0, batch=batch)
        if calls.before_render:
            calls.before_render(batch=batch)
        if calls.after_render:
            calls.after_render(batch=batch)
        if calls.after_forward:
            calls.after_forward(batch=batch, outputs=None, loss=None)
        if calls.after_backward:
            calls.after_backward(batch=batch, outputs=None, loss=None)
        if calls.before_optimizer_step:
            calls.before_optimizer_step()
        if calls.after_optimizer_step:
            calls.after_optimizer_step()
        calls.after_train_iter(batch_idx=0, batch=batch, outputs=None)

    return iteration


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    rows, figures = [], {}
    for count in COUNTS:
        bus = bus_with(Listener, count)
        results = measure_interleaved(
            {
                "nothing": nothing,
                "hand-written": hand_written(count),
                "loop path": through_loop(bus),
                "emit": through_emit(bus),
                "pluggy": through_pluggy(count),
            },
            calls=2_000,
            rounds=rounds,
        )
        for name in ("hand-written", "loop path", "emit", "pluggy"):
            nanoseconds, ratio = compare_to_floor(results, name, "hand-written", "nothing")
            shown = f"{ratio:.2f}" if count else ""
            rows.append(
                [name if name != "hand-written" else f"{count} listeners: hand-written", f"{nanoseconds:.0f}", shown]
            )
            figures[f"{count} {name}"] = round(nanoseconds if not count else ratio, 3)
    waiting = bus_with(ScheduledListener, 20)
    waiting.calls.after_render(step=1, batch=None)
    results = measure_interleaved(
        {"nothing": nothing, "hand-written": hand_written(1), "waiting": through_loop(waiting)},
        calls=2_000,
        rounds=rounds,
    )
    nanoseconds, _ = compare_to_floor(results, "waiting", "hand-written", "nothing")
    rows.append(["20 scheduled listeners, none due", f"{nanoseconds:.0f}", ""])
    figures["20 waiting ns"] = round(nanoseconds, 1)
    batch = (torch.zeros(32, 1), torch.zeros(32))
    results = measure_interleaved(
        {"nothing": nothing, "hand-written": hand_written_iteration(batch), "loop path": loop_iteration(batch)},
        calls=1_000,
        rounds=rounds,
    )
    for name, label in (
        ("hand-written", "8 events, 10 hooks, 7 of them rarely: hand-written"),
        ("loop path", "loop path"),
    ):
        nanoseconds, ratio = compare_to_floor(results, name, "hand-written", "nothing")
        rows.append([label, f"{nanoseconds:.0f}", f"{ratio:.2f}"])
        figures[f"iteration {name} ns"] = round(nanoseconds, 1)
    print_table("One event", ["", "ns", "ratio to hand-written"], rows)
    report("emit", **figures)


if __name__ == "__main__":
    main()
