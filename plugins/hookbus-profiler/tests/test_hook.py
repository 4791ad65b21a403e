import gzip
import json
import time

import pytest
import torch

from hookbus import Hook, HookBus
from hookbus.errors import HookWarning
from hookbus.loop import Trainer
from hookbus.testing import RecordingBus, check_hook, fake_training, fingerprint
from hookbus_profiler import ProfilerHook
from hookbus_profiler.flops import peak_of
from hookbus_profiler.session import Cycle, is_profiling

CYCLE = {"wait": 1, "warmup": 1, "active": 2, "repeat": 2}


@pytest.fixture(autouse=True)
def _everything_is_off_again():
    yield
    assert not is_profiling()


class Kept(ProfilerHook):
    """Keeps its report, which is printed and forgotten otherwise."""

    def cleanup(self):
        self.kept = self.report
        super().cleanup()


def traces(work_dir):
    return sorted(path.name for path in (work_dir / "profiler").glob("*.gz"))


def test_it_keeps_the_promises_of_hooks():
    check_hook(ProfilerHook, profile_iters=4)


class TestTraces:
    def test_there_is_one_per_cycle_with_its_own_summary_and_nothing_is_recorded_later(self, tmp_path):
        fake_training([ProfilerHook(schedule=CYCLE)], epochs=1, batches=50, work_dir=tmp_path)
        assert traces(tmp_path) == [f"rank0-cycle{c}-iteration{4 * c}.pt.trace.json.gz" for c in (1, 2)]
        assert len(list((tmp_path / "profiler").glob("*.operators.txt"))) == 2
        for name in traces(tmp_path):
            events = json.loads(gzip.decompress((tmp_path / "profiler" / name).read_bytes()))["traceEvents"]
            assert sum(event.get("name", "").startswith("ProfilerStep#") for event in events) == 2

    def test_a_run_that_ends_in_the_middle_leaves_what_was_recorded(self, tmp_path):
        fake_training([ProfilerHook(schedule=CYCLE)], epochs=1, batches=3, work_dir=tmp_path)
        assert traces(tmp_path) == ["rank0-cycle1-iteration3.pt.trace.json.gz"]

    @pytest.mark.parametrize(("iterations", "cycles"), [(1, 0), (3, 0), (4, 1), (5, 1), (6, 1), (7, 1), (8, 2), (9, 2)])
    def test_a_run_that_is_stopped_leaves_those_of_the_cycles_that_had_begun_to_record(
        self, tmp_path, iterations, cycles
    ):
        class Stop(Hook):
            def after_train_iter(self, run):
                if run.iters_done == iterations:
                    run.request_stop("enough")

        # Iteration 1 is skipped; then there is 1 that is left alone, 1 to warm up, and 2 are recorded, twice.
        hook = ProfilerHook(schedule={**CYCLE, "skip_first": 1}, with_flops=False)
        fake_training([hook, Stop()], epochs=1, batches=20, work_dir=tmp_path)
        assert [name.split("-")[1] for name in traces(tmp_path)] == ["cycle1", "cycle2"][:cycles]

    def test_a_run_that_fails_leaves_them_too_and_the_profiler_is_off(self, tmp_path):
        class Failing(Hook):
            def after_forward(self, run):
                if run.iter == 3:
                    raise ZeroDivisionError("no")

        with pytest.raises(ZeroDivisionError):
            fake_training([ProfilerHook(schedule=CYCLE), Failing()], epochs=1, batches=9, work_dir=tmp_path)
        assert traces(tmp_path) == ["rank0-cycle1-iteration3.pt.trace.json.gz"]

    @pytest.mark.parametrize(("tensorboard", "suffix"), [(True, ".pt.trace.json.gz"), (False, "4.json.gz")])
    def test_the_name_is_one_that_tensorboard_finds_where_that_is_wanted(self, tmp_path, tensorboard, suffix):
        hook = ProfilerHook(schedule={**CYCLE, "repeat": 1}, export_tensorboard=tensorboard)
        fake_training([hook], epochs=1, batches=5, work_dir=tmp_path)
        assert traces(tmp_path)[0].endswith(suffix)

    def test_the_rank_is_part_of_the_name(self, tmp_path, monkeypatch):
        hook = ProfilerHook(schedule={**CYCLE, "repeat": 1})
        monkeypatch.setattr("hookbus_profiler.output.rank", lambda: 3)
        fake_training([hook], epochs=1, batches=5, work_dir=tmp_path)
        assert traces(tmp_path) == ["rank3-cycle1-iteration4.pt.trace.json.gz"]

    def test_a_handler_gets_each_cycle_after_the_schedule_was_advanced(self, tmp_path):
        seen = []
        hook = ProfilerHook(schedule=CYCLE, on_trace_ready=lambda p: seen.append(len(p.key_averages())))
        fake_training([hook], epochs=1, batches=20, work_dir=tmp_path)
        assert len(seen) == 2
        assert all(seen)

    def test_a_handler_that_fails_is_a_warning_and_the_next_cycle_is_recorded(self, tmp_path):
        def fail(profile):
            raise ZeroDivisionError("no")

        with pytest.warns(HookWarning, match="failed .*ZeroDivisionError"):
            fake_training([ProfilerHook(schedule=CYCLE, on_trace_ready=fail)], epochs=1, batches=20, work_dir=tmp_path)
        assert len(traces(tmp_path)) == 2

    def test_their_size_is_bounded_and_that_is_said_once(self, tmp_path, caplog):
        hook = ProfilerHook(schedule={**CYCLE, "repeat": 0}, max_megabytes=1e-6)
        fake_training([hook], epochs=1, batches=17, work_dir=tmp_path)
        assert [path.name for path in (tmp_path / "profiler").iterdir()] == ["report.txt"]
        assert caplog.text.count("is left out, and what follows as well") == 1

    def test_each_of_several_processes_has_its_share_of_the_room(self, tmp_path, caplog, monkeypatch):
        monkeypatch.setattr("hookbus_profiler.output.world_size", lambda: 10**6)
        fake_training([ProfilerHook(schedule=CYCLE)], epochs=1, batches=9, work_dir=tmp_path)
        assert "would take more than the 0.0005 MB that they may" in caplog.text

    def test_without_a_work_dir_the_operators_are_told(self, caplog):
        caplog.set_level("INFO", "hookbus")
        fake_training([ProfilerHook(schedule={**CYCLE, "repeat": 1})], epochs=1, batches=5)
        assert "aten::addmm" in caplog.text


class TestWindow:
    def test_ends_after_so_many_iterations_and_nothing_is_paid_from_then_on(self):
        bus = HookBus([Kept(profile_iters=4), watch := Watch()])
        fake_training(bus=bus, epochs=1, batches=8)
        assert watch.measured == [True] * 3 + [False] * 5
        assert watch.listening == [True] * 3 + [False] * 5

    def test_may_be_counted_in_epochs(self):
        bus = HookBus([Kept(profile_iters=2, by_epoch=True, schedule={"wait": 99}), watch := Watch()])
        fake_training(bus=bus, epochs=3, batches=2)
        assert watch.measured == [True] * 4 + [False] * 2

    def test_begins_where_a_run_goes_on(self):
        bus = HookBus([hook := Kept(profile_iters=4)])
        fake_training(bus=bus, epochs=1, batches=8)
        first = hook.kept
        fake_training(bus=bus, epochs=2, batches=8)
        assert hook.kept is not first
        assert hook.kept is not None

    def test_is_not_opened_by_a_test(self):
        model, batches = torch.nn.Linear(1, 1), [torch.ones(1, 1)]
        hooks = [Kept(), watch := Watch()]
        Trainer(model, test_loader=batches, hooks=hooks, default_hooks=False, work_dir=None, device="cpu").test()
        assert watch.measured == [False]


class Watch(Hook):
    """Notes at the end of each iteration whether hooks are being timed, and who is on the bus besides it."""

    priority = -1000

    def __init__(self):
        super().__init__()
        self.measured, self.listening = [], []

    def after_train_iter(self, run):
        self.measured.append(run.bus.table.around_work is not None)
        self.listening.append("kept/window" in run.bus.hooks)

    after_test_iter = after_train_iter


class TestAnotherProfiler:
    def test_that_is_on_is_left_alone_and_this_one_says_so(self, tmp_path):
        with torch.profiler.profile() as other:
            with pytest.warns(HookWarning, match="Another profiler is on in this process"):
                fake_training([ProfilerHook()], work_dir=tmp_path)
            torch.ones(2, 2) @ torch.ones(2, 2)
        assert "aten::mm" in {each.key for each in other.key_averages()}
        assert not (tmp_path / "profiler").exists()

    @pytest.mark.parametrize("wait", [0, 9])
    def test_that_waits_or_warms_up_is_on_as_well(self, tmp_path, wait):
        other = torch.profiler.profile(schedule=torch.profiler.schedule(wait=wait, warmup=20, active=1))
        other.start()
        try:
            with pytest.warns(HookWarning, match="Another profiler is on in this process"):
                fake_training([ProfilerHook(schedule={"wait": 0})], work_dir=tmp_path)
        finally:
            other.stop()
        assert not (tmp_path / "profiler").exists()

    def test_that_is_over_or_was_never_on_is_in_nobody_s_way(self, tmp_path):
        schedule = torch.profiler.schedule(wait=0, warmup=1, active=1)
        never, over = torch.profiler.profile(schedule=schedule), torch.profiler.profile(schedule=schedule)
        over.start()
        over.stop()
        fake_training([ProfilerHook(schedule={**CYCLE, "repeat": 1})], epochs=1, batches=5, work_dir=tmp_path)
        assert len(traces(tmp_path)) == 1
        assert never.step_num == 0

    def test_of_this_kind_is_one_too_even_while_it_warms_up(self, tmp_path):
        cycle = Cycle(5, 1)
        try:
            with pytest.warns(HookWarning, match="Another profiler is on in this process"):
                fake_training([ProfilerHook()], work_dir=tmp_path)
        finally:
            cycle.stop()


class Stopwatch:
    """Sleeps, and knows by itself how long that took."""

    def __init__(self):
        self.seconds = {}

    def sleep(self, part, seconds):
        began = time.perf_counter()
        time.sleep(seconds)
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began


class Sleeping(Hook):
    def __init__(self, watch):
        super().__init__(name="sleeper")
        self.watch = watch

    def after_train_iter(self):
        self.watch.sleep("hook sleeper", 0.015)


class Whole(Hook):
    """Measures the time from the end of the first iteration to that of the last one, as the last of all hooks."""

    priority = -1000

    def __init__(self, watch):
        super().__init__()
        self.watch = watch

    def after_train_iter(self, run):
        now = time.perf_counter()
        if run.iters_done == 1:
            self.began = now
            self.watch.seconds.clear()
        self.seconds = now - self.began


def slow_training(watch, hooks, **options):
    """12 iterations that sleep everywhere."""

    class Loader:
        num_workers = 0

        def __iter__(self):
            for _ in range(12):
                watch.sleep("data", 0.03)
                yield torch.ones(1, 1)

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            watch.sleep("forward", 0.02)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            watch.sleep("backward", 0.01)
            return gradient

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return (Slow.apply(self.weight) * x).sum()

    class Update(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        def step(self):
            watch.sleep("optimizer", 0.005)

    model = Model()
    given = {"train_loader": Loader(), "epochs": 1, "work_dir": None, "default_hooks": False, "device": "cpu"}
    Trainer(model, Update(model.parameters()), hooks=hooks, **given, **options).fit()


class TestReport:
    @pytest.mark.parametrize("priority", [0, 100])
    @pytest.mark.parametrize("order", ["nested", "ascending"])
    def test_splits_the_time_into_its_parts_within_five_percent_of_the_whole(self, priority, order):
        watch = Stopwatch()
        hook = Kept(by_epoch=True, profile_iters=1, schedule={"wait": 99}, with_flops=False, priority=priority)
        whole = Whole(watch)
        if order == "ascending":
            whole.priority = 1000
        slow_training(watch, [hook, Sleeping(watch), whole], order=order)
        times = hook.kept.times
        found = times.parts | {f"hook {name}": seconds for name, seconds in times.hooks.items()}

        assert times.iterations == 11
        assert times.seconds == pytest.approx(whole.seconds, rel=0.05)
        assert set(watch.seconds) == {"data", "forward", "backward", "optimizer", "hook sleeper"}
        for part, seconds in watch.seconds.items():
            assert found[part] == pytest.approx(seconds, abs=0.05 * whole.seconds), part
        assert sum(hook.kept.shares.values()) == pytest.approx(1)

    def test_is_kept_as_a_file_and_printed(self, tmp_path, capsys):
        fake_training([ProfilerHook(profile_iters=6)], epochs=1, batches=9, work_dir=tmp_path)
        text = (tmp_path / "profiler/report.txt").read_text()
        assert text.startswith("Where the time goes: ")
        assert "hook profiler" not in text
        assert "Where the time goes: " in capsys.readouterr().out

    def test_counts_the_arithmetic_of_one_iteration(self):
        fake_training([hook := Kept(profile_iters=9)], epochs=1, batches=9)
        # Batches of 4: forward 2*4*(3*4 + 4*2); backward both layers' weights again, and the second one's input.
        assert hook.kept.flops == 2 * 4 * (2 * 3 * 4 + 3 * 4 * 2)

    @pytest.mark.parametrize("wait", [0, 1, 2])
    def test_counts_it_whatever_is_traced(self, wait):
        fake_training([hook := Kept(schedule={"wait": wait, "warmup": 0, "active": 3})], epochs=1, batches=9)
        assert hook.kept.flops == 2 * 4 * (2 * 3 * 4 + 3 * 4 * 2)

    def test_does_not_keep_a_compiled_model_from_being_compiled(self):
        calls = []

        def backend(graph, _):
            return lambda *args: calls.append("compiled") or graph.forward(*args)

        model = torch.nn.Linear(1, 1)
        batches = [(torch.ones(1, 1), torch.ones(1, 1))] * 5
        options = {"train_loader": batches, "epochs": 1, "work_dir": None, "default_hooks": False, "device": "cpu"}
        compiled = torch.compile(model, backend=backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        try:
            Trainer(compiled, optimizer, torch.nn.functional.mse_loss, hooks=[hook := Kept()], **options).fit()
        finally:
            torch.compiler.reset()

        # The second iteration is the one that is counted: 2*1*1*1 forward, as much again for the weight.
        assert (len(calls), hook.kept.flops, hook.kept.times.iterations) == (4, 4, 3)

    def test_of_a_run_of_one_iteration_says_what_that_means(self, capsys):
        fake_training([ProfilerHook()], epochs=1, batches=1)
        head, note = capsys.readouterr().out.splitlines()[0].split(", ", 1)
        assert head.startswith("Where the time goes: 1 iteration of ")
        assert note == "the first, slower than others"

    def test_leaves_the_arithmetic_out_where_it_is_not_wanted(self):
        fake_training([hook := Kept(profile_iters=9, with_flops=False)], epochs=1, batches=9)
        assert hook.kept.flops is None

    def test_knows_a_loop_that_says_nothing_about_its_steps(self):
        bus = RecordingBus([hook := Kept(profile_iters=9)])
        with bus.run(iterations=9) as run:
            for i, batch in run.batches([torch.ones(1)] * 9):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
        assert set(hook.kept.times.parts) <= {"data", "step", "other"}


@pytest.mark.gpu
class TestARealDevice:
    class Busy(torch.nn.Module):
        """Keeps the device busy for some milliseconds, while the host goes on."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(64, 64))

        def forward(self, x):
            torch.cuda._sleep(20_000_000)
            return (x @ self.weight).sum()

    def train(self, hooks, work_dir=None):
        model = self.Busy()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = [torch.ones(8, 64, device="cuda")] * 40  # to bring a batch there would wait for the device
        options = {"work_dir": work_dir, "default_hooks": False, "device": "cuda"}
        Trainer(model, optimizer, train_loader=loader, epochs=1, hooks=hooks, **options).fit()

    def test_is_measured_by_its_own_clock_and_the_parts_add_up_to_the_whole(self):
        class Events(Hook):
            """Marks the end of the first iteration and of the last one in the queue of the device."""

            priority = -1000

            def after_train_iter(self, run):
                event = torch.cuda.Event(enable_timing=True)
                event.record()
                self.first = event if run.iters_done == 1 else self.first
                self.last = event

        hook, events = Kept(by_epoch=True, profile_iters=1, schedule={"wait": 99}, with_flops=False), Events()
        self.train([hook, events])
        torch.cuda.synchronize()
        whole, times = events.first.elapsed_time(events.last) / 1000, hook.kept.times

        assert times.iterations == 39
        assert times.seconds == pytest.approx(whole, rel=0.05)
        assert times.parts["forward"] > 0.8 * whole

    def test_is_not_waited_for_in_any_iteration(self):
        class Ahead(Hook):
            """Whether the device had still not come to the last iteration when the host was done with it."""

            priority = -1000

            def before_train_iter(self, run):
                if run.iter == 39:
                    self.last = torch.cuda.Event()
                    self.last.record()

            def after_train_iter(self, run):
                if run.iter == 39:
                    self.is_busy = not self.last.query()

        ahead = Ahead()
        self.train([ProfilerHook(by_epoch=True, profile_iters=1, schedule={"wait": 99}), ahead])

        assert ahead.is_busy

    def test_has_its_kernels_in_the_trace_and_its_name_in_the_report(self, tmp_path):
        self.train([hook := Kept(profile_iters=10, schedule={**CYCLE, "repeat": 1})], tmp_path)
        (name,) = traces(tmp_path)
        events = json.loads(gzip.decompress((tmp_path / "profiler" / name).read_bytes()))["traceEvents"]

        assert any(event.get("cat") == "kernel" for event in events)
        assert hook.kept.peak == peak_of(torch.cuda.get_device_name())
        # Forward 2*8*64*64, backward as much again for the weight; the input needs no gradient.
        assert hook.kept.flops == 2 * (2 * 8 * 64 * 64)


def test_the_weights_are_the_same_bit_for_bit_with_the_hook():
    without = fake_training(epochs=3)
    with_it = fake_training([ProfilerHook(profile_iters=6)], epochs=3)
    assert fingerprint(with_it.model.state_dict()) == fingerprint(without.model.state_dict())
    assert fingerprint(with_it.rng) == fingerprint(without.rng)
