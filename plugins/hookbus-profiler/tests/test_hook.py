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
from hookbus_profiler.session import Cycle, is_profiling

CYCLE = {"wait": 1, "warmup": 1, "active": 2, "repeat": 2}


@pytest.fixture(autouse=True)
def _everything_is_off_again():
    yield
    assert not is_profiling()


class Kept(ProfilerHook):
    """Keeps its report, which is printed and forgotten otherwise."""

    def cleanup(self, run):
        self.kept = self.report
        super().cleanup(run)


def traces(work_dir):
    return sorted(path.name for path in (work_dir / "profiler").iterdir() if path.name.endswith(".gz"))


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
        monkeypatch.setattr("hookbus_profiler.hook.rank", lambda: 3)
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

    def test_their_size_is_bounded(self, tmp_path, caplog):
        fake_training([ProfilerHook(schedule=CYCLE, max_megabytes=1e-6)], epochs=1, batches=9, work_dir=tmp_path)
        assert traces(tmp_path) == []
        assert "is left out: with its" in caplog.text

    def test_without_a_work_dir_the_operators_are_told(self, caplog):
        caplog.set_level("INFO", "hookbus")
        fake_training([ProfilerHook(schedule={**CYCLE, "repeat": 1})], epochs=1, batches=5)
        assert "aten::addmm" in caplog.text


class TestWindow:
    def test_ends_after_so_many_iterations_and_nothing_is_measured_from_then_on(self):
        bus = HookBus([Kept(profile_iters=4), watch := Watch()])
        fake_training(bus=bus, epochs=1, batches=8)
        assert watch.timed == [True] * 3 + [False] * 5

    def test_may_be_counted_in_epochs(self):
        bus = HookBus([Kept(profile_iters=2, by_epoch=True, schedule={"wait": 99}), watch := Watch()])
        fake_training(bus=bus, epochs=3, batches=2)
        assert watch.timed == [True] * 4 + [False] * 2

    def test_begins_where_a_run_goes_on(self):
        bus = HookBus([hook := Kept(profile_iters=4)])
        fake_training(bus=bus, epochs=1, batches=8)
        first = hook.kept
        fake_training(bus=bus, epochs=2, batches=8)
        assert hook.kept is not first
        assert hook.kept is not None

    def test_is_not_opened_by_a_test(self):
        model = torch.nn.Linear(1, 1)
        trainer = Trainer(
            model, test_loader=[torch.ones(1, 1)], hooks=[Kept()], default_hooks=False, work_dir=None, device="cpu"
        )
        trainer.test()
        assert not is_profiling()


class Watch(Hook):
    """Notes at the end of each iteration whether hooks are being timed."""

    priority = -1000

    def __init__(self):
        super().__init__()
        self.timed = []

    def after_train_iter(self, run):
        self.timed.append(run.bus.table.around_work is not None)


class TestAnotherProfiler:
    def test_that_is_on_is_left_alone_and_this_one_says_so(self, tmp_path):
        with torch.profiler.profile() as other:
            with pytest.warns(HookWarning, match="Another profiler is on in this process"):
                fake_training([ProfilerHook()], work_dir=tmp_path)
            torch.ones(2, 2) @ torch.ones(2, 2)
        assert "aten::mm" in {each.key for each in other.key_averages()}
        assert not (tmp_path / "profiler").exists()

    def test_of_this_kind_is_one_too_even_while_it_warms_up(self, tmp_path):
        cycle = Cycle(5, 1)
        try:
            with pytest.warns(HookWarning, match="Another profiler is on in this process"):
                fake_training([ProfilerHook()], work_dir=tmp_path)
        finally:
            cycle.stop()


class Sleeping(Hook):
    def __init__(self, **seconds):
        super().__init__(name="sleeper")
        self.seconds = seconds

    def after_train_iter(self):
        time.sleep(self.seconds["hook"])


class Loader:
    num_workers = 0

    def __iter__(self):
        for _ in range(12):
            time.sleep(0.03)
            yield torch.ones(1, 1)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(0.02)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.01)
        return gradient


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return (Slow.apply(self.weight) * x).sum()


class TestReport:
    def test_splits_known_sleeps_into_their_parts_in_any_place_among_the_hooks(self):
        model = Model()
        for priority in (0, 100):
            hook = Kept(by_epoch=True, profile_iters=1, schedule={"wait": 99}, priority=priority)
            trainer = Trainer(
                model, torch.optim.SGD(model.parameters(), lr=0.1), train_loader=Loader(), epochs=1, work_dir=None,
                hooks=[hook, Sleeping(hook=0.015)], default_hooks=False, device="cpu",
            )  # fmt: skip
            trainer.fit()
            times = hook.kept.times
            assert times.iterations == 11
            expected = {"data": 0.03, "forward": 0.02, "backward": 0.01}
            for part, seconds in expected.items():
                assert times.parts[part] / 11 >= seconds
            assert times.hooks["sleeper"] / 11 >= 0.015
            shares = hook.kept.shares
            assert sum(shares.values()) == pytest.approx(1)
            assert max(shares, key=shares.get) == "data"

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


def test_the_device_is_never_waited_for(monkeypatch):
    waits = []
    for module, name in ((torch.cuda, "synchronize"), (torch.accelerator, "synchronize")):
        monkeypatch.setattr(module, name, lambda *args: waits.append(args))
    fake_training([ProfilerHook(schedule={"wait": 30}, profile_iters=60)], epochs=1, batches=20)
    assert waits == []


def test_the_weights_are_the_same_bit_for_bit_with_the_hook():
    without = fake_training(epochs=3)
    with_it = fake_training([ProfilerHook(profile_iters=6)], epochs=3)
    assert fingerprint(with_it.model.state_dict()) == fingerprint(without.model.state_dict())
    assert fingerprint(with_it.rng) == fingerprint(without.rng)
