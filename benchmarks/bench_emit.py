"""What one event costs, against the calls written by hand (the floor) and pluggy itself.

python -m benchmarks.bench_emit [--rounds 60]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pluggy

from benchmarks.measure import against, interleaved, nothing, print_table, report, written_out
from hookbus import Hook, HookBus, every, hookimpl

COUNTS = (0, 1, 5, 10, 20)


class Listens(Hook):
    def after_render(self, run: Any, step: Any, batch: Any) -> None:
        pass


class ListensNowAndThen(Hook):
    @hookimpl(when=every(100))
    def after_render(self, run: Any, step: Any, batch: Any) -> None:
        pass


def bus_with(hook: type[Hook], count: int) -> HookBus:
    bus = HookBus()
    bus.declare("after_render", args=("step", "batch"), unit="iter")
    for i in range(count):
        bus.register(hook(name=f"hook{i}"))
    return bus


def by_hand(count: int) -> Callable[[], None]:
    return written_out([Listens(name=f"hook{i}").after_render for i in range(count)], object(), 1, (1, 2))


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
    """The loop's own path: a truth test, then the compiled function."""
    calls, batch = bus.calls, (1, 2)

    def fire() -> None:
        if calls.after_render:
            calls.after_render(step=1, batch=batch)

    return fire


def through_emit(bus: HookBus) -> Callable[[], None]:
    emit, batch = bus.emit, (1, 2)
    return lambda: emit("after_render", step=1, batch=batch)  # type: ignore[call-overload]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    rows, figures = [], {}
    for count in COUNTS:
        bus = bus_with(Listens, count)
        results = interleaved(
            {
                "nothing": nothing,
                "by hand": by_hand(count),
                "loop path": through_loop(bus),
                "emit": through_emit(bus),
                "pluggy": through_pluggy(count),
            },
            calls=2_000,
            rounds=rounds,
        )
        for name in ("by hand", "loop path", "emit", "pluggy"):
            nanoseconds, ratio = against(results, name, "by hand", "nothing")
            shown = f"{ratio:.2f}" if count else ""
            rows.append([name if name != "by hand" else f"{count} listeners: by hand", f"{nanoseconds:.0f}", shown])
            figures[f"{count} {name}"] = round(nanoseconds if not count else ratio, 3)
    waiting = bus_with(ListensNowAndThen, 20)
    waiting.calls.after_render(step=1, batch=None)
    results = interleaved(
        {"nothing": nothing, "by hand": by_hand(1), "waiting": through_loop(waiting)}, calls=2_000, rounds=rounds
    )
    nanoseconds, _ = against(results, "waiting", "by hand", "nothing")
    rows.append(["20 scheduled listeners, none due", f"{nanoseconds:.0f}", ""])
    figures["20 waiting ns"] = round(nanoseconds, 1)
    print_table("One event", ["", "ns", "ratio to by hand"], rows)
    report("emit", **figures)


if __name__ == "__main__":
    main()
