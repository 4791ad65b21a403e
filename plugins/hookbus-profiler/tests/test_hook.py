import gzip
import json
import time

import pytest
import torch

from hookbus import Hook, HookBus
from hookbus.errors import ConfigError, HookWarning
from hookbus.metrics import get_peak_flops
from hookbus.testing import RecordingBus, check_hook, fake_training, fingerprint
from hookbus.trainer.trainer import Trainer
from hookbus_profiler import ProfilerHook
from hookbus_profiler.profiling_window import Cycle, is_profiling

CYCLE = {"wait": 1, "warmup": 1, "active": 2, "repeat": 2}
requires_reset_of_stopped_profiler = pytest.mark.skipif(
    torch.__version__ < "2.13", reason="requires torch 2.13: before, a profiler that waits looks like a stopped one"
)


@pytest.fixture(autouse=True)
def _no_active_profiler():
    yield
    assert not is_profiling()


class StoreReport(ProfilerHook):
    """Store the report, which is otherwise discarded after printing."""

    def cleanup(self):
        self.stored_report = self.report
        super().cleanup()


def list_traces(work_dir):
    return sorted(path.name for path in (work_dir / "profiler").glob("*.gz"))


@pytest.mark.slow
def test_hook_passes_the_conformance_checks():
    check_hook(ProfilerHook, profile_iters=4)


class TestTraces:
    @pytest.mark.slow
    def test_each_cycle_has_a_trace_and_an_operator_table(self, tmp_path):
        fake_training([ProfilerHook(schedule=CYCLE)], epochs=1, batches=50, work_dir=tmp_path)
        assert list_traces(tmp_path) == [f"rank0-cycle{c}-iteration{4 * c}.pt.trace.json.gz" for c in (1, 2)]
        assert len(list((tmp_path / "profiler").glob("*.operators.txt"))) == 2
        for name in list_traces(tmp_path):
            events = json.loads(gzip.decompress((tmp_path / "profiler" / name).read_bytes()))["traceEvents"]
            assert sum(event.get("name", "").startswith("ProfilerStep#") for event in events) == 2

    @pytest.mark.slow
    def test_run_that_ends_within_a_cycle_writes_the_recorded_iterations(self, tmp_path):
        fake_training([ProfilerHook(schedule=CYCLE)], epochs=1, batches=3, work_dir=tmp_path)
        assert list_traces(tmp_path) == ["rank0-cycle1-iteration3.pt.trace.json.gz"]

    @pytest.mark.slow
    @pytest.mark.parametrize(("iterations", "cycles"), [(1, 0), (3, 0), (4, 1), (5, 1), (6, 1), (7, 1), (8, 2), (9, 2)])
    def test_stopped_run_writes_a_trace_of_each_recorded_cycle(self, tmp_path, iterations, cycles):
        class Stop(Hook):
            def after_train_iter(self, run):
                if run.iters_done == iterations:
                    run.request_stop("enough")

        # Iteration 1 is skipped; each of two cycles has one waiting, one warm-up and two recorded iterations.
        hook = ProfilerHook(schedule={**CYCLE, "skip_first": 1}, with_flops=False)
        fake_training([hook, Stop()], epochs=1, batches=20, work_dir=tmp_path)
        assert [name.split("-")[1] for name in list_traces(tmp_path)] == ["cycle1", "cycle2"][:cycles]

    @pytest.mark.slow
    def test_failed_run_writes_its_traces_and_stops_the_profiler(self, tmp_path):
        class Failing(Hook):
            def after_forward(self, run):
                if run.iter == 3:
                    raise ZeroDivisionError("no")

        with pytest.raises(ZeroDivisionError):
            fake_training([ProfilerHook(schedule=CYCLE), Failing()], epochs=1, batches=9, work_dir=tmp_path)
        assert list_traces(tmp_path) == ["rank0-cycle1-iteration3.pt.trace.json.gz"]

    @pytest.mark.slow
    @pytest.mark.parametrize(("tensorboard", "suffix"), [(True, ".pt.trace.json.gz"), (False, "4.json.gz")])
    def test_export_tensorboard_determines_the_file_name(self, tmp_path, tensorboard, suffix):
        hook = ProfilerHook(schedule={**CYCLE, "repeat": 1}, export_tensorboard=tensorboard)
        fake_training([hook], epochs=1, batches=5, work_dir=tmp_path)
        assert list_traces(tmp_path)[0].endswith(suffix)

    @pytest.mark.slow
    def test_file_name_contains_the_rank(self, tmp_path, monkeypatch):
        hook = ProfilerHook(schedule={**CYCLE, "repeat": 1})
        monkeypatch.setattr("hookbus_profiler.output.rank", lambda: 3)
        fake_training([hook], epochs=1, batches=5, work_dir=tmp_path)
        assert list_traces(tmp_path) == ["rank3-cycle1-iteration4.pt.trace.json.gz"]

    @pytest.mark.slow
    def test_handler_receives_each_cycle(self, tmp_path):
        counts = []
        hook = ProfilerHook(schedule=CYCLE, on_trace_ready=lambda p: counts.append(len(p.key_averages())))
        fake_training([hook], epochs=1, batches=20, work_dir=tmp_path)
        assert len(counts) == 2
        assert all(counts)

    @pytest.mark.slow
    def test_failing_handler_is_a_warning_and_profiling_continues(self, tmp_path):
        def fail(profile):
            raise ZeroDivisionError("no")

        with pytest.warns(HookWarning, match="failed .*ZeroDivisionError"):
            fake_training([ProfilerHook(schedule=CYCLE, on_trace_ready=fail)], epochs=1, batches=20, work_dir=tmp_path)
        assert len(list_traces(tmp_path)) == 2

    @pytest.mark.slow
    def test_size_limit_is_reported_once(self, tmp_path, caplog):
        hook = ProfilerHook(schedule={**CYCLE, "repeat": 0}, max_megabytes=1e-6)
        fake_training([hook], epochs=1, batches=17, work_dir=tmp_path)
        assert [path.name for path in (tmp_path / "profiler").iterdir()] == ["report.txt"]
        assert caplog.text.count("This file and later ones are not written") == 1

    @pytest.mark.slow
    def test_size_limit_is_divided_among_the_processes(self, tmp_path, caplog, monkeypatch):
        monkeypatch.setattr("hookbus_profiler.output.world_size", lambda: 10**6)
        fake_training([ProfilerHook(schedule=CYCLE)], epochs=1, batches=9, work_dir=tmp_path)
        assert "the files would exceed their limit of 0.0005 MB" in caplog.text

    @pytest.mark.slow
    def test_operators_are_logged_without_a_work_dir(self, caplog):
        caplog.set_level("INFO", "hookbus")
        fake_training([ProfilerHook(schedule={**CYCLE, "repeat": 1})], epochs=1, batches=5)
        assert "aten::addmm" in caplog.text


def test_second_profiler_of_a_run_is_rejected_at_the_start():
    with pytest.raises(ConfigError, match="hook 'a' also profiles the run, and only one can. Remove one of them."):
        fake_training([ProfilerHook(name="b"), ProfilerHook(name="a")])


def test_trace_of_the_last_profiled_iteration_is_written(tmp_path):
    fake_training([ProfilerHook(profile_iters=1)], epochs=1, batches=3, work_dir=tmp_path)
    assert list_traces(tmp_path) == ["rank0-cycle1-iteration1.pt.trace.json.gz"]


class TestIncompleteSchedule:
    """A run that is shorter than the schedule is one warning with numbers."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("batches", "schedule", "message"),
        [
            (1, CYCLE, "ended after 1 iteration, before its schedule was completed: 0 of 4 planned"),
            (3, CYCLE, "ended after 3 iterations, before its schedule was completed: 1 of 4 planned"),
            (4, CYCLE, "ended after 4 iterations, before its schedule was completed: 2 of 4 planned"),
            (7, CYCLE, "ended after 7 iterations, before its schedule was completed: 3 of 4 planned"),
            (9, {**CYCLE, "skip_first": 5}, "ended after 9 iterations, before its schedule was completed: 2 of 4"),
            (3, {**CYCLE, "repeat": 0}, "ended after 3 iterations, before its schedule was completed: 1 of 2 planned"),
        ],
    )
    def test_short_run_is_one_warning_with_numbers(self, tmp_path, caplog, batches, schedule, message):
        fake_training([ProfilerHook(schedule=schedule)], epochs=1, batches=batches, work_dir=tmp_path)
        assert [message in record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [True]

    @pytest.mark.slow
    def test_warning_contains_the_schedule(self, caplog):
        fake_training([ProfilerHook(schedule=CYCLE)], epochs=1, batches=2)
        assert (
            "profiler: profiling ended after 2 iterations, before its schedule was completed: 0 of 4 planned "
            "iterations were traced. The schedule is skip_first 0 + (wait 1 + warmup 1 + active 2) x repeat 2 = 8 "
            "iterations. Train longer, or set a shorter `schedule`."
        ) in caplog.text

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("settings", "batches"),
        [({"schedule": CYCLE}, 8), ({"schedule": {**CYCLE, "repeat": 0}}, 7), ({"profile_iters": 4}, 4)],
    )
    def test_completed_schedule_is_no_warning(self, caplog, settings, batches):
        fake_training([ProfilerHook(**settings)], epochs=1, batches=batches)
        assert caplog.text == ""

    @pytest.mark.slow
    def test_epochs_that_are_shorter_than_the_schedule_are_a_warning(self, caplog):
        hook = ProfilerHook(by_epoch=True, profile_iters=1, schedule=CYCLE)
        fake_training([hook], epochs=3, batches=4)
        assert "ended after 4 iterations, before its schedule was completed: 2 of 4" in caplog.text

    def test_training_without_an_iteration_is_a_warning(self, caplog):
        with HookBus([ProfilerHook()]).run(model=torch.nn.Linear(1, 1), epochs=1) as run:
            run.bus.emit("before_train")
        assert "profiling ended after 0 iterations, before its schedule was completed: 0 of 10" in caplog.text


class TestWindow:
    def test_profiling_ends_after_profile_iters(self):
        bus = HookBus([StoreReport(profile_iters=4), watch := RecordListeners()])
        fake_training(bus=bus, epochs=1, batches=8)
        assert watch.measured == [True] * 3 + [False] * 5
        assert watch.listening == [True] * 3 + [False] * 5

    def test_profile_iters_counts_epochs_with_by_epoch(self):
        bus = HookBus([StoreReport(profile_iters=2, by_epoch=True, schedule={"wait": 99}), watch := RecordListeners()])
        fake_training(bus=bus, epochs=3, batches=2)
        assert watch.measured == [True] * 4 + [False] * 2

    @pytest.mark.slow
    def test_continued_run_is_profiled_again(self):
        bus = HookBus([hook := StoreReport(profile_iters=4)])
        fake_training(bus=bus, epochs=1, batches=8)
        first = hook.stored_report
        fake_training(bus=bus, epochs=2, batches=8)
        assert hook.stored_report is not first
        assert hook.stored_report is not None

    def test_separate_test_is_not_profiled(self):
        model, batches = torch.nn.Linear(1, 1), [torch.ones(1, 1)]
        hooks = [StoreReport(), watch := RecordListeners()]
        Trainer(model, test_loader=batches, hooks=hooks, default_hooks=False, work_dir=None, device="cpu").test()
        assert watch.measured == [False]


class RecordListeners(Hook):
    """Record at the end of each iteration whether hooks are timed and whether the window is registered."""

    priority = -1000

    def __init__(self):
        super().__init__()
        self.measured, self.listening = [], []

    def after_train_iter(self, run):
        self.measured.append(bool(run.bus.table.work_wrappers))
        self.listening.append("store_report/window" in run.bus.hooks)

    after_test_iter = after_train_iter


class TestOtherProfiler:
    @pytest.mark.slow
    def test_active_profiler_is_preserved_with_a_warning(self, tmp_path):
        with torch.profiler.profile() as other:
            with pytest.warns(HookWarning, match="Another profiler is active in this process"):
                fake_training([ProfilerHook()], work_dir=tmp_path)
            torch.ones(2, 2) @ torch.ones(2, 2)
        assert "aten::mm" in {event.key for event in other.key_averages()}
        assert not (tmp_path / "profiler").exists()

    @pytest.mark.slow
    @pytest.mark.parametrize("wait", [0, pytest.param(9, marks=requires_reset_of_stopped_profiler)])
    def test_waiting_profiler_counts_as_active(self, tmp_path, wait):
        other = torch.profiler.profile(schedule=torch.profiler.schedule(wait=wait, warmup=20, active=1))
        other.start()
        try:
            with pytest.warns(HookWarning, match="Another profiler is active in this process"):
                fake_training([ProfilerHook(schedule={"wait": 0})], work_dir=tmp_path)
        finally:
            other.stop()
        assert not (tmp_path / "profiler").exists()

    @pytest.mark.slow
    def test_stopped_or_unstarted_profiler_does_not_prevent_profiling(self, tmp_path):
        schedule = torch.profiler.schedule(wait=0, warmup=1, active=1)
        never, over = torch.profiler.profile(schedule=schedule), torch.profiler.profile(schedule=schedule)
        over.start()
        over.stop()
        fake_training([ProfilerHook(schedule={**CYCLE, "repeat": 1})], epochs=1, batches=5, work_dir=tmp_path)
        assert len(list_traces(tmp_path)) == 1
        assert never.step_num == 0

    def test_second_profiler_hook_is_disabled_with_a_warning(self, tmp_path):
        cycle = Cycle(5, 1)
        try:
            with pytest.warns(HookWarning, match="Another profiler is active in this process"):
                fake_training([ProfilerHook()], work_dir=tmp_path)
        finally:
            cycle.stop()


class Stopwatch:
    """Sleep and measure the time spent by part."""

    def __init__(self):
        self.seconds = {}

    def sleep(self, part, seconds):
        began = time.perf_counter()
        time.sleep(seconds)
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began


class Sleep(Hook):
    def __init__(self, watch):
        super().__init__(name="sleeper")
        self.watch = watch

    def after_train_iter(self):
        self.watch.sleep("hook sleeper", 0.015)


class MeasureTotal(Hook):
    """Measure the time from the end of the first iteration to the end of the last one, as the outermost hook."""

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
    """Train for 12 iterations that sleep in each part."""

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
    defaults = {"train_loader": Loader(), "epochs": 1, "work_dir": None, "default_hooks": False, "device": "cpu"}
    Trainer(model, Update(model.parameters()), hooks=hooks, **defaults, **options).fit()


class TestReport:
    @pytest.mark.slow
    @pytest.mark.parametrize("priority", [0, 100])
    @pytest.mark.parametrize("order", ["nested", "ascending"])
    def test_report_measures_each_part_within_five_percent_of_the_total(self, priority, order):
        watch = Stopwatch()
        hook = StoreReport(by_epoch=True, profile_iters=1, schedule={"wait": 99}, with_flops=False, priority=priority)
        total = MeasureTotal(watch)
        if order == "ascending":
            total.priority = 1000
        slow_training(watch, [hook, Sleep(watch), total], order=order)
        times = hook.stored_report.times
        measured = times.parts | {f"hook {name}": seconds for name, seconds in times.hooks.items()}

        assert times.iterations == 11
        assert times.seconds == pytest.approx(total.seconds, rel=0.05)
        assert set(watch.seconds) == {"data", "forward", "backward", "optimizer", "hook sleeper"}
        for part, seconds in watch.seconds.items():
            assert measured[part] == pytest.approx(seconds, abs=0.05 * total.seconds), part
        assert sum(hook.stored_report.shares.values()) == pytest.approx(1)

    @pytest.mark.slow
    def test_report_is_written_and_printed(self, tmp_path, capsys):
        fake_training([ProfilerHook(profile_iters=6)], epochs=1, batches=9, work_dir=tmp_path)
        text = (tmp_path / "profiler/report.txt").read_text()
        assert text.startswith("Time breakdown: ")
        assert "hook profiler" not in text
        assert "Time breakdown: " in capsys.readouterr().out

    @pytest.mark.slow
    def test_report_contains_the_flops_of_one_iteration(self):
        fake_training([hook := StoreReport(profile_iters=9)], epochs=1, batches=9)
        # Batches of 4: forward 2*4*(3*4 + 4*2); backward as many for the weights, and the input gradient of layer 2.
        assert hook.stored_report.flops == 2 * 4 * (2 * 3 * 4 + 3 * 4 * 2)

    @pytest.mark.slow
    @pytest.mark.parametrize("wait", [0, 1, 2])
    def test_flops_do_not_depend_on_the_schedule(self, wait):
        fake_training([hook := StoreReport(schedule={"wait": wait, "warmup": 0, "active": 3})], epochs=1, batches=9)
        assert hook.stored_report.flops == 2 * 4 * (2 * 3 * 4 + 3 * 4 * 2)

    def test_counting_flops_does_not_prevent_compilation(self):
        calls = []

        def backend(graph, _):
            return lambda *args: calls.append("compiled") or graph.forward(*args)

        model = torch.nn.Linear(1, 1)
        batches = [(torch.ones(1, 1), torch.ones(1, 1))] * 5
        options = {"train_loader": batches, "epochs": 1, "work_dir": None, "default_hooks": False, "device": "cpu"}
        compiled = torch.compile(model, backend=backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        try:
            Trainer(compiled, optimizer, torch.nn.functional.mse_loss, hooks=[hook := StoreReport()], **options).fit()
        finally:
            torch.compiler.reset()

        # FLOPs are counted in the second iteration: 2*1*1*1 forward, as many for the weight gradient.
        assert (len(calls), hook.stored_report.flops, hook.stored_report.times.iterations) == (4, 4, 3)

    def test_report_of_one_iteration_has_a_note(self, capsys):
        fake_training([ProfilerHook()], epochs=1, batches=1)
        head, note = capsys.readouterr().out.splitlines()[0].split(", ", 1)
        assert head.startswith("Time breakdown: 1 iteration of ")
        assert note == "including warm-up"

    @pytest.mark.slow
    def test_flops_are_not_counted_without_with_flops(self):
        fake_training([hook := StoreReport(profile_iters=9, with_flops=False)], epochs=1, batches=9)
        assert hook.stored_report.flops is None

    @pytest.mark.slow
    def test_report_of_a_loop_with_few_points_has_coarse_parts(self):
        bus = RecordingBus([hook := StoreReport(profile_iters=9)])
        with bus.run(iterations=9) as run:
            for i, batch in run.batches([torch.ones(1)] * 9):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
        assert set(hook.stored_report.times.parts) <= {"data", "step", "other"}


@pytest.mark.gpu
class TestGpu:
    class Busy(torch.nn.Module):
        """Model that keeps the device busy for several milliseconds."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(64, 64))

        def forward(self, x):
            torch.cuda._sleep(20_000_000)
            return (x @ self.weight).sum()

    def train(self, hooks, work_dir=None):
        model = self.Busy()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = [torch.ones(8, 64, device="cuda")] * 40  # a host-to-device copy would synchronize
        options = {"work_dir": work_dir, "default_hooks": False, "device": "cuda"}
        Trainer(model, optimizer, train_loader=loader, epochs=1, hooks=hooks, **options).fit()

    def test_gpu_is_measured_by_events_and_the_parts_sum_to_the_total(self):
        class Events(Hook):
            """Record device events at the end of the first and last iteration."""

            priority = -1000

            def after_train_iter(self, run):
                event = torch.cuda.Event(enable_timing=True)
                event.record()
                self.first = event if run.iters_done == 1 else self.first
                self.last = event

        hook, events = StoreReport(by_epoch=True, profile_iters=1, schedule={"wait": 99}, with_flops=False), Events()
        self.train([hook, events])
        torch.cuda.synchronize()
        total, times = events.first.elapsed_time(events.last) / 1000, hook.stored_report.times

        assert times.iterations == 39
        assert times.seconds == pytest.approx(total, rel=0.05)
        assert times.parts["forward"] > 0.8 * total

    def test_profiler_does_not_synchronize_with_the_gpu(self):
        class RecordBusy(Hook):
            """Record whether the device is still busy when the host completes the last iteration."""

            priority = -1000

            def before_train_iter(self, run):
                if run.iter == 39:
                    self.last = torch.cuda.Event()
                    self.last.record()

            def after_train_iter(self, run):
                if run.iter == 39:
                    self.is_busy = not self.last.query()

        busy = RecordBusy()
        self.train([ProfilerHook(by_epoch=True, profile_iters=1, schedule={"wait": 99}), busy])

        assert busy.is_busy

    def test_trace_contains_kernels_and_the_report_the_peak(self, tmp_path):
        self.train([hook := StoreReport(profile_iters=10, schedule={**CYCLE, "repeat": 1})], tmp_path)
        (name,) = list_traces(tmp_path)
        events = json.loads(gzip.decompress((tmp_path / "profiler" / name).read_bytes()))["traceEvents"]

        assert any(event.get("cat") == "kernel" for event in events)
        assert hook.stored_report.peak == get_peak_flops(torch.cuda.get_device_name(), "fp16")
        # Forward 2*8*64*64, backward as many for the weight; the input needs no gradient.
        assert hook.stored_report.flops == 2 * (2 * 8 * 64 * 64)


def test_hook_does_not_change_the_weights():
    baseline = fake_training(epochs=3)
    profiled = fake_training([ProfilerHook(profile_iters=6)], epochs=3)
    assert fingerprint(profiled.model.state_dict()) == fingerprint(baseline.model.state_dict())
    assert fingerprint(profiled.rng) == fingerprint(baseline.rng)
