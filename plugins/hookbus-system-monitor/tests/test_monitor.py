import itertools
import json
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Hook, HookBus
from hookbus_system_monitor import AcceleratorProvider, NullProvider, NvmlProvider, SystemMonitorHook

from .toys import Writer, accumulate, train


class Counting:
    """A provider that counts its readings; it may fail, or wait at one of them for the word to go on."""

    def __init__(self, error=None, waits_at=None):
        self.readings, self.closings, self.error, self.waits_at = 0, 0, error, waits_at
        self.going_on = threading.Event()
        self._changed = threading.Condition()

    def read(self):
        with self._changed:
            self.readings += 1
            self._changed.notify_all()
        if self.readings == self.waits_at:
            self.going_on.wait(30)
        if self.error is not None:
            raise self.error
        return {"gpu0/percent": float(self.readings), "gpu0/celsius": None}

    def close(self):
        self.closings += 1

    def wait_for(self, readings):
        """Wait for the beginning of this reading: what was read before it is taken in."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.readings >= readings, timeout=30)

    def wait_for_a_sample(self):
        self.wait_for(self.readings + 2)


class Monitor(SystemMonitorHook):
    """A monitor of nothing but one provider."""

    def __init__(self, provider, **settings):
        nothing = {f"track_{what}": False for what in ("cpu", "memory", "disk", "network")}
        super().__init__({**nothing, "interval": 0.01, **settings})
        self.provider = provider

    def providers(self):
        return [self.provider]


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "monitor"]


class TestRecords:
    def test_are_made_every_frequency_iterations_of_what_is_new(self):
        provider, writer = Counting(), Writer()
        bus = HookBus([Monitor(provider, frequency=2), writer])
        with bus.run(epochs=1) as run:
            train(bus, run, lambda number: provider.wait_for_a_sample())
        means = [values["system/gpu0/percent"] for _, values in writer.written]

        assert writer.steps == [2, 4, 6]
        assert means == sorted(set(means))
        assert all(set(values) == {"system/gpu0/percent"} for _, values in writer.written)

    def test_are_not_made_where_there_is_no_new_sample(self):
        provider, writer = Counting(waits_at=2), Writer()
        bus = HookBus([Monitor(provider, frequency=1), writer])
        with bus.run(epochs=2) as run:
            provider.wait_for(2)
            train(bus, run)
            written = list(writer.written)
            provider.going_on.set()

        assert written == [(1, {"system/gpu0/percent": 1.0})]

    def test_wait_for_an_update_in_the_middle_of_an_accumulation(self):
        provider, writer = Counting(), Writer()
        accumulate([Monitor(provider, frequency=3), writer], by=2, in_iteration=provider.wait_for_a_sample)

        # Due at iterations 3 and 6; 3 makes no update, 4 makes the second one.
        assert writer.steps == [2, 3]

    def test_stand_once_on_an_update(self):
        provider, writer = Counting(), Writer()
        accumulate([Monitor(provider, frequency=1), writer], by=2, in_iteration=provider.wait_for_a_sample)

        assert writer.steps == [1, 2, 3]

    def test_of_a_short_training_are_made_at_its_end(self):
        provider, writer = Counting(), Writer()
        bus = HookBus([Monitor(provider, frequency=1000), writer])
        with bus.run(epochs=1) as run:
            provider.wait_for_a_sample()
            train(bus, run)

        assert writer.steps == [6]

    def test_have_no_first_value_of_the_cpu(self, monkeypatch):
        answers = itertools.chain([0.0], itertools.repeat(37.0))
        monkeypatch.setattr(psutil, "cpu_percent", lambda: next(answers))
        writer = Writer()
        bus = HookBus([SystemMonitorHook(interval=0.01, track_gpu=False, track_gpu_memory=False), writer])
        with bus.run(epochs=1) as run:
            train(bus, run, lambda number: time.sleep(0.1))

        assert {values.get("system/cpu_percent", 37.0) for _, values in writer.written} == {37.0}
        assert "system/cpu_percent" in writer.written[-1][1]

    @pytest.mark.parametrize(
        ("what", "name"),
        [
            ("cpu", "cpu_percent"),
            ("memory", "memory_percent"),
            ("disk", "disk_percent"),
            ("network", "net_sent_mb_per_s"),
        ],
    )
    def test_are_about_what_is_tracked_only(self, what, name):
        kinds = ("cpu", "memory", "disk", "network", "gpu", "gpu_memory")
        writer = Writer()
        hook = SystemMonitorHook(interval=0.01, **{f"track_{kind}": kind == what for kind in kinds})
        bus = HookBus([hook, writer])
        with bus.run(epochs=1) as run:
            train(bus, run, lambda number: time.sleep(0.05))
        names = {name for _, values in writer.written for name in values}

        assert f"system/{name}" in names
        assert {each.removeprefix("system/").removeprefix("process_")[:3] for each in names} <= {name[:3], "swa"}


class TestTheThread:
    def test_is_one_daemon_while_the_run_lasts(self):
        bus = HookBus([Monitor(Counting())])
        with bus.run(epochs=1):
            (thread,) = threads()
            assert thread.daemon

        assert threads() == []

    @pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
    def test_is_gone_after_a_run_that_fails(self, error):
        provider = Counting()
        bus = HookBus([Monitor(provider)])

        def fail(number):
            if number == 2:
                raise error

        with pytest.raises(type(error)), bus.run(epochs=1) as run:
            train(bus, run, fail)

        assert (threads(), provider.closings) == ([], 1)

    def test_is_gone_after_a_run_that_another_hook_did_not_let_begin(self):
        class Failing(Hook):
            priority = 100

            def before_run(self):
                raise OSError("no room")

        provider = Counting()
        bus = HookBus([Monitor(provider), Failing()])
        with pytest.raises(OSError, match="no room"), bus.run(epochs=1):
            pytest.fail("the run began")

        assert (threads(), provider.closings) == ([], 1)

    def test_is_another_one_in_the_next_run(self):
        provider = Counting()
        bus = HookBus([Monitor(provider)])
        for _ in range(2):
            with bus.run(epochs=1, fresh=True) as run:
                assert len(threads()) == 1
                train(bus, run)

        assert (threads(), provider.closings) == ([], 2)

    def test_goes_on_while_workers_are_forked(self):
        provider, writer = Counting(), Writer()
        bus = HookBus([Monitor(provider, frequency=1), writer])
        loader = DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=4, num_workers=1)
        with bus.run(epochs=1) as run:
            for _ in run.epochs():
                for i, batch in run.batches(loader):
                    bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    provider.wait_for_a_sample()
                    bus.emit("after_train_iter", batch_idx=i, batch=batch)

        assert writer.steps == [1, 2]

    @pytest.mark.slow
    def test_keeps_no_process_alive_that_fails(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text(
            "from hookbus import HookBus\n"
            "from hookbus_system_monitor import SystemMonitorHook\n"
            "bus = HookBus([SystemMonitorHook(interval=0.01)])\n"
            "with bus.run(epochs=1) as run:\n"
            "    for i in range(3):\n"
            "        bus.emit('before_train_iter', batch_idx=i, batch=None)\n"
            "        if i == 1:\n"
            "            raise ValueError('at iteration 2')\n"
            "        bus.emit('after_train_iter', batch_idx=i, batch=None)\n"
        )
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)

        assert done.returncode == 1
        assert done.stderr.rstrip().endswith("ValueError: at iteration 2")


class TestAProvider:
    def test_that_fails_is_told_once_and_leaves_the_others_alone(self, caplog):
        class Two(SystemMonitorHook):
            def providers(self):
                return [broken, working]

        broken, working, writer = Counting(OSError("broken")), Counting(), Writer()
        bus = HookBus([Two(name="monitor", interval=0.01, frequency=1, track_cpu=False, track_disk=False), writer])
        with bus.run(epochs=1) as run:
            train(bus, run, lambda number: working.wait_for_a_sample())

        assert [record.getMessage() for record in caplog.records if "broken" in record.getMessage()] == [
            "monitor: source Counting cannot be read (broken): there is no value for it as long as that lasts."
        ]
        assert run.outcome == "finished"
        assert {"system/gpu0/percent", "system/memory_percent"} <= set(writer.written[-1][1])
        assert (broken.closings, working.closings) == (1, 1)

    @pytest.mark.parametrize(
        ("use", "memory", "kinds"),
        [
            (True, True, [NvmlProvider, AcceleratorProvider]),
            (False, True, [NvmlProvider, AcceleratorProvider]),
            (True, False, [NvmlProvider]),
            (False, False, [NullProvider]),
        ],
    )
    def test_is_chosen_by_what_is_tracked(self, use, memory, kinds):
        hook = SystemMonitorHook(track_gpu=use, track_gpu_memory=memory)

        assert [type(provider) for provider in hook.providers()] == kinds


class TestPictures:
    def test_are_drawn_at_the_end(self, tmp_path, caplog):
        caplog.set_level(logging.INFO, logger="hookbus")
        provider = Counting()
        bus = HookBus([Monitor(provider, show_plots=True)])
        with bus.run(epochs=1, work_dir=tmp_path) as run:
            train(bus, run, lambda number: provider.wait_for_a_sample())
        path = tmp_path / "visualization" / "system_train.png"

        with Image.open(path) as picture:
            assert picture.format == "PNG"
        assert f"monitor: the course of the run is in {path}." in caplog.text

    def test_are_drawn_of_a_run_that_failed(self, tmp_path):
        provider = Counting()
        bus = HookBus([Monitor(provider, show_plots=True)])

        def fail(number):
            provider.wait_for_a_sample()
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"), bus.run(epochs=1, work_dir=tmp_path) as run:
            train(bus, run, fail)

        assert (tmp_path / "visualization" / "system_train.png").exists()

    def test_that_have_no_place_are_told_at_the_start(self, caplog):
        bus = HookBus([Monitor(Counting(), show_plots=True)])
        with bus.run(epochs=1):
            assert "monitor: show_plots is on, and this run has no place for pictures" in caplog.text


@pytest.mark.slow
def test_a_run_reads_its_own_devices_and_follows_the_driver(made_up_driver, tmp_path):
    gb = 2**30
    cards = f"count 2 0.total {24 * gb} 0.used {gb} 1.total {8 * gb} 1.used {2 * gb} 1.use.error 3 1.celsius 50"
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os, sys, time\n"
        "from hookbus import Hook, HookBus\n"
        "from hookbus_system_monitor import SystemMonitorHook\n"
        "class Writer(Hook):\n"
        "    rows = []\n"
        "    def log_scalars(self, values):\n"
        "        self.rows.append(dict(values))\n"
        "def wait_until(condition, scenario):\n"
        "    with open('next', 'w') as file:\n"
        "        file.write(scenario)\n"
        "    os.replace('next', os.environ['NVML_SCENARIO'])\n"  # the thread never reads half of one
        "    for i in range(2000):\n"
        "        time.sleep(0.01)\n"
        "        bus.emit('before_train_iter', batch_idx=i, batch=None)\n"
        "        bus.emit('after_train_iter', batch_idx=i, batch=None)\n"
        "        if Writer.rows and condition(Writer.rows[-1]):\n"
        "            return Writer.rows[-1]\n"
        f"cards = {cards!r}\n"
        "only = dict.fromkeys(('track_cpu', 'track_disk', 'track_network'), False)\n"
        "bus = HookBus([SystemMonitorHook(interval=0.01, frequency=1, **only), Writer()])\n"
        "name = 'system/gpu0/celsius'\n"
        "with bus.run(iterations=10**6):\n"
        "    seen = [wait_until(lambda row: name in row, cards)]\n"
        "    seen.append(wait_until(lambda row: name not in row, cards + ' init 9 all 9'))\n"
        "    seen.append(wait_until(lambda row: name in row, cards))\n"
        "print(json.dumps(seen))\n"
    )
    environment = made_up_driver(cards) | {"CUDA_VISIBLE_DEVICES": "1"}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    of_gpus = [{name: value for name, value in row.items() if "gpu" in name} for row in json.loads(done.stdout)]
    values = {"system/gpu0/celsius": 50, "system/gpu0/memory_used_gb": 2, "system/gpu0/memory_percent": 25}

    assert of_gpus == [values, {}, values]
    opened = Path(environment["NVML_CALLS"]).read_text().split()
    assert opened == ["open", "close"] * (len(opened) // 2)
    assert done.stderr.count("use of GPU 0 (GPU-1) cannot be read") == 1
    assert done.stderr.count("does not answer") == 1
