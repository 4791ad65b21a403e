import itertools
import json
import logging
import math
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
from hookbus.errors import ConfigError
from hookbus_system_monitor import AcceleratorProvider, NvmlProvider, SystemMonitorHook
from hookbus_system_monitor.monitor import group_by_unit, plot_error, save_plots

from .toys import Writer, accumulate, train


class CountingProvider:
    """Provider that counts its readings, and optionally fails or blocks in one of them."""

    def __init__(self, error=None, blocks_at=None):
        self.readings, self.closings, self.error, self.blocks_at = 0, 0, error, blocks_at
        self.unblocked = threading.Event()
        self._changed = threading.Condition()

    def read(self):
        with self._changed:
            self.readings += 1
            self._changed.notify_all()
        if self.readings == self.blocks_at:
            self.unblocked.wait(30)
        if self.error is not None:
            raise self.error
        return {"gpu0/percent": float(self.readings), "gpu0/celsius": None}

    def close(self):
        self.closings += 1

    def wait_for(self, readings):
        """Wait until a reading starts; earlier readings have been stored by then."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.readings >= readings, timeout=30)

    def wait_for_a_sample(self):
        self.wait_for(self.readings + 2)


class ProviderMonitor(SystemMonitorHook):
    """ProviderMonitor with a single provider and no host metrics."""

    def __init__(self, provider, **settings):
        disabled = {f"track_{metrics}": False for metrics in ("cpu", "memory", "disk", "network")}
        super().__init__({**disabled, "interval": 0.01, **settings})
        self.provider = provider

    def build_providers(self):
        return [self.provider]


def get_threads():
    return [thread for thread in threading.enumerate() if thread.name == "provider_monitor"]


class TestRecords:
    def test_samples_of_a_prediction_are_logged_at_its_end(self):
        provider, writer = CountingProvider(), Writer()
        bus = HookBus([ProviderMonitor(provider), writer])
        with bus.run(mode="predict"):
            bus.emit("before_predict")
            provider.wait_for_a_sample()
            bus.emit("after_predict")
        assert len(writer.written) == 1

    def test_new_samples_are_logged_every_frequency_iterations(self):
        provider, writer = CountingProvider(), Writer()
        bus = HookBus([ProviderMonitor(provider, frequency=2), writer])
        with bus.run(epochs=1) as run:
            train(bus, run, lambda number: provider.wait_for_a_sample())
        means = [values["system/gpu0/percent"] for _, values in writer.written]

        assert writer.steps == [2, 4, 6]
        assert means == sorted(set(means))
        assert all(set(values) == {"system/gpu0/percent"} for _, values in writer.written)

    def test_nothing_is_logged_without_a_new_sample(self):
        provider, writer = CountingProvider(blocks_at=2), Writer()
        bus = HookBus([ProviderMonitor(provider, frequency=1), writer])
        with bus.run(epochs=2) as run:
            provider.wait_for(2)
            train(bus, run)
            written = list(writer.written)
            provider.unblocked.set()

        assert written == [(1, {"system/gpu0/percent": 1.0})]

    def test_record_within_an_accumulation_is_deferred_to_the_next_step(self):
        provider, writer = CountingProvider(), Writer()
        accumulate([ProviderMonitor(provider, frequency=3), writer], by=2, in_iteration=provider.wait_for_a_sample)

        # Due at iterations 3 and 6; 3 is no optimizer step, 4 is the second one.
        assert writer.steps == [2, 3]

    def test_each_optimizer_step_has_one_record(self):
        provider, writer = CountingProvider(), Writer()
        accumulate([ProviderMonitor(provider, frequency=1), writer], by=2, in_iteration=provider.wait_for_a_sample)

        assert writer.steps == [1, 2, 3]

    def test_short_training_is_logged_at_its_end(self):
        provider, writer = CountingProvider(), Writer()
        bus = HookBus([ProviderMonitor(provider, frequency=1000), writer])
        with bus.run(epochs=1) as run:
            provider.wait_for_a_sample()
            train(bus, run)

        assert writer.steps == [6]

    def test_first_cpu_reading_is_not_logged(self, monkeypatch):
        readings = itertools.chain([0.0], itertools.repeat(37.0))
        monkeypatch.setattr(psutil, "cpu_percent", lambda: next(readings))
        writer = Writer()
        bus = HookBus([SystemMonitorHook(interval=0.01, track_gpu=False, track_gpu_memory=False), writer])
        with bus.run(epochs=1) as run:
            train(bus, run, lambda number: time.sleep(0.1))

        assert {values.get("system/cpu_percent", 37.0) for _, values in writer.written} == {37.0}
        assert "system/cpu_percent" in writer.written[-1][1]

    @pytest.mark.parametrize(
        ("tracked", "name"),
        [
            ("cpu", "cpu_percent"),
            ("memory", "memory_percent"),
            ("disk", "disk_percent"),
            ("network", "net_sent_mb_per_s"),
        ],
    )
    def test_only_tracked_metrics_are_logged(self, tracked, name):
        kinds = ("cpu", "memory", "disk", "network", "gpu", "gpu_memory")
        writer = Writer()
        hook = SystemMonitorHook(interval=0.01, **{f"track_{kind}": kind == tracked for kind in kinds})
        bus = HookBus([hook, writer])
        with bus.run(epochs=1) as run:
            train(bus, run, lambda number: time.sleep(0.05))
        names = {name for _, values in writer.written for name in values}

        assert f"system/{name}" in names
        assert {logged.removeprefix("system/").removeprefix("process_")[:3] for logged in names} <= {name[:3], "swa"}


class TestThread:
    def test_run_has_one_daemon_thread(self):
        bus = HookBus([ProviderMonitor(CountingProvider())])
        with bus.run(epochs=1):
            (thread,) = get_threads()
            assert thread.daemon

        assert get_threads() == []

    @pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
    def test_thread_ends_after_a_failed_run(self, error):
        provider = CountingProvider()
        bus = HookBus([ProviderMonitor(provider)])

        def fail(number):
            if number == 2:
                raise error

        with pytest.raises(type(error)), bus.run(epochs=1) as run:
            train(bus, run, fail)

        assert (get_threads(), provider.closings) == ([], 1)

    def test_thread_ends_if_another_hook_fails_in_before_run(self):
        class Failing(Hook):
            priority = 100

            def before_run(self):
                raise OSError("no space left")

        provider = CountingProvider()
        bus = HookBus([ProviderMonitor(provider), Failing()])
        with pytest.raises(OSError, match="no space left"), bus.run(epochs=1):
            pytest.fail("the run has started")

        assert (get_threads(), provider.closings) == ([], 1)

    def test_each_run_has_its_own_thread(self):
        provider = CountingProvider()
        bus = HookBus([ProviderMonitor(provider)])
        for _ in range(2):
            with bus.run(epochs=1, fresh=True) as run:
                assert len(get_threads()) == 1
                train(bus, run)

        assert (get_threads(), provider.closings) == ([], 2)

    def test_thread_continues_while_workers_are_forked(self):
        provider, writer = CountingProvider(), Writer()
        bus = HookBus([ProviderMonitor(provider, frequency=1), writer])
        loader = DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=4, num_workers=1)
        with bus.run(epochs=1) as run:
            for _ in run.epochs():
                for i, batch in run.batches(loader):
                    bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    provider.wait_for_a_sample()
                    bus.emit("after_train_iter", batch_idx=i, batch=batch)

        assert writer.steps == [1, 2]

    @pytest.mark.slow
    def test_thread_does_not_keep_a_failed_process_alive(self, tmp_path):
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
        result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)

        assert result.returncode == 1
        assert result.stderr.rstrip().endswith("ValueError: at iteration 2")


class TestProviders:
    def test_failing_provider_is_reported_once_and_others_are_read(self, caplog):
        class TwoProviders(SystemMonitorHook):
            def build_providers(self):
                return [broken, working]

        broken, working, writer = CountingProvider(OSError("broken")), CountingProvider(), Writer()
        bus = HookBus(
            [TwoProviders(name="monitor", interval=0.01, frequency=1, track_cpu=False, track_disk=False), writer]
        )
        with bus.run(epochs=1) as run:
            train(bus, run, lambda number: working.wait_for_a_sample())

        assert [record.getMessage() for record in caplog.records if "broken" in record.getMessage()] == [
            "monitor: provider CountingProvider is unavailable: broken. Its values are omitted until it is available."
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
            (False, False, []),
        ],
    )
    def test_providers_depend_on_the_tracked_metrics(self, use, memory, kinds):
        hook = SystemMonitorHook(track_gpu=use, track_gpu_memory=memory)

        assert [type(provider) for provider in hook.build_providers()] == kinds


class TestPlots:
    def test_plots_are_saved_at_the_end_of_the_run(self, tmp_path, caplog):
        caplog.set_level(logging.INFO, logger="hookbus")
        provider = CountingProvider()
        bus = HookBus([ProviderMonitor(provider, show_plots=True)])
        with bus.run(epochs=1, work_dir=tmp_path) as run:
            train(bus, run, lambda number: provider.wait_for_a_sample())
        path = tmp_path / "visualization" / "system_train.png"

        with Image.open(path) as image:
            assert image.format == "PNG"
        assert f"monitor: plots saved to {path}." in caplog.text

    def test_plots_are_saved_for_a_failed_run(self, tmp_path):
        provider = CountingProvider()
        bus = HookBus([ProviderMonitor(provider, show_plots=True)])

        def fail(number):
            provider.wait_for_a_sample()
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"), bus.run(epochs=1, work_dir=tmp_path) as run:
            train(bus, run, fail)

        assert (tmp_path / "visualization" / "system_train.png").exists()

    def test_plots_without_a_work_dir_are_refused(self):
        bus = HookBus([ProviderMonitor(CountingProvider(), show_plots=True)])
        message = "show_plots: requires a work directory, got none. Set `work_dir`, or `show_plots: false`."
        with pytest.raises(ConfigError, match=message), bus.run(epochs=1):
            pytest.fail("the loop has started")


@pytest.mark.slow
def test_run_reads_its_own_devices_and_recovers_from_a_driver_failure(fake_driver, tmp_path):
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
        "    os.replace('next', os.environ['NVML_SCENARIO'])\n"  # atomic: the thread never reads an incomplete file
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
        "    rows = [wait_until(lambda row: name in row, cards)]\n"
        "    rows.append(wait_until(lambda row: name not in row, cards + ' init 9 all 9'))\n"
        "    rows.append(wait_until(lambda row: name in row, cards))\n"
        "print(json.dumps(rows))\n"
    )
    environment = fake_driver(cards) | {"CUDA_VISIBLE_DEVICES": "1"}
    command = [sys.executable, str(script)]
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=90)
    assert result.returncode == 0, result.stderr
    gpu_rows = [{name: value for name, value in row.items() if "gpu" in name} for row in json.loads(result.stdout)]
    values = {"system/gpu0/celsius": 50, "system/gpu0/memory_used_gb": 2, "system/gpu0/memory_percent": 25}

    assert gpu_rows == [values, {}, values]
    calls = Path(environment["NVML_CALLS"]).read_text().split()
    assert calls == ["open", "close"] * (len(calls) // 2)
    assert result.stderr.count("utilization of GPU 0 (GPU-1) is unavailable") == 1
    assert result.stderr.count(": GPU 0 is unavailable") == 1


class TestTwoInstances:
    DISABLED = dict.fromkeys(("track_cpu", "track_memory", "track_gpu", "track_gpu_memory", "track_network"), False)

    def test_instances_with_the_same_values_are_rejected_at_the_start(self):
        bus = HookBus([SystemMonitorHook({**self.DISABLED, "name": name}) for name in ("a", "b")])
        message = "track_disk: hook 'b' also logs these values. Set `track_disk: false` for one of them."
        with pytest.raises(ConfigError, match=message), bus.run(epochs=1):
            pass

    def test_instances_with_different_values_work_side_by_side(self):
        writer = Writer()
        disk = SystemMonitorHook({**self.DISABLED, "name": "a"})
        memory = SystemMonitorHook({**self.DISABLED, "track_disk": False, "track_memory": True, "name": "b"})
        bus = HookBus([disk, memory, writer])
        with bus.run(epochs=1) as run:
            train(bus, run, lambda number: time.sleep(0.05))
        names = {name for _, values in writer.written for name in values}
        assert {"system/disk_percent", "system/process_memory_gb"} <= names


VALUES = {
    "system/cpu_percent": [None, 40, 50],
    "system/gpu0/watts": [200, None, 210],
    "system/gpu0/percent": [1, 2, 3],
    "system/net_sent_mb_per_s": [0, 0, 0],
}


class TestPanels:
    def test_each_unit_has_a_panel(self):
        assert group_by_unit(list(VALUES)) == {
            "%": ["system/cpu_percent", "system/gpu0/percent"],
            "MB/s": ["system/net_sent_mb_per_s"],
            "W": ["system/gpu0/watts"],
        }

    def test_panels_contain_all_names(self):
        names = ["cpu_percent", "memory_used_gb", "net_sent_mb_per_s", "celsius", "watts", "sm_mhz", "joules"]

        assert sorted(name for members in group_by_unit(names).values() for name in members) == sorted(names)


class TestFigure:
    def test_figure_is_a_png_with_a_height_proportional_to_the_panels(self, tmp_path):
        save_plots(tmp_path / "all.png", [0, 2, 4], VALUES)
        save_plots(tmp_path / "one.png", [0, 2, 4], {"system/cpu_percent": [1, 2, 3]})

        with Image.open(tmp_path / "all.png") as all_, Image.open(tmp_path / "one.png") as one:
            assert (all_.format, all_.height) == ("PNG", 3 * one.height)

    def test_figure_depends_on_the_values(self, tmp_path):
        for name, values in (("flat", [50, 50, 50]), ("steep", [0, 50, 100])):
            save_plots(tmp_path / f"{name}.png", [0, 1, 2], {"system/cpu_percent": values})

        assert (tmp_path / "flat.png").read_bytes() != (tmp_path / "steep.png").read_bytes()

    def test_missing_value_interrupts_the_line(self, tmp_path):
        for name, middle in (("gap", None), ("nan", math.nan), ("line", 50)):
            save_plots(tmp_path / f"{name}.png", [0, 1, 2], {"system/cpu_percent": [50, middle, 50]})

        assert (tmp_path / "gap.png").read_bytes() == (tmp_path / "nan.png").read_bytes()
        assert (tmp_path / "gap.png").read_bytes() != (tmp_path / "line.png").read_bytes()


class TestProblems:
    def test_plot_error_is_none_with_a_directory_and_matplotlib(self, tmp_path):
        assert plot_error(tmp_path) is None

    def test_plot_error_reports_missing_matplotlib(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)

        assert plot_error(tmp_path) == (
            'show_plots: requires matplotlib, got none. Run: pip install "hookbus-system-monitor[plots]"'
        )

    def test_plot_error_reports_a_missing_directory(self):
        assert plot_error(None) == (
            "show_plots: requires a work directory, got none. Set `work_dir`, or `show_plots: false`."
        )
