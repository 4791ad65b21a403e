import psutil
import pytest

from hookbus_system_monitor.cgroup import Cgroup, Usage
from hookbus_system_monitor.host import cpu_probes, disk_probes, memory_probes, network_probes
from hookbus_system_monitor.memory import process_memory

MB, GB = 2**20, 2**30


class Unlimited:
    """A control group without limits."""

    def memory(self):
        return None

    swap = cpus = cpu_seconds = memory


class TwoCpus(Unlimited):
    """A container that may use two CPUs."""

    used = 10.0

    def cpus(self):
        return 2.0

    def cpu_seconds(self):
        return self.used


def values(probes):
    return {name: value for probe in probes for name, value in zip(probe.names, probe.read(), strict=True)}


@pytest.fixture
def host(monkeypatch):
    """A host of 8 CPUs without sensors, whose first answer about its use is the meaningless 0."""
    answers = iter([0.0, 37.0, 41.0])
    monkeypatch.setattr(psutil, "cpu_percent", lambda: next(answers))
    monkeypatch.setattr(psutil, "cpu_count", lambda: 8)
    monkeypatch.setattr(psutil, "sensors_temperatures", dict, raising=False)
    return monkeypatch


class TestCpu:
    def test_has_no_value_before_there_is_something_to_compare_with(self, host):
        probes = cpu_probes(Unlimited())

        assert values(probes) == {"cpu_percent": None, "process_cpu_percent": None}
        assert [values(probes)["cpu_percent"] for _ in range(2)] == [37.0, 41.0]

    def test_of_a_container_is_told_of_what_it_may_use(self, host, clock):
        cgroup = TwoCpus()
        probes = cpu_probes(cgroup, clock)
        values(probes)
        cgroup.used, clock.now = 13.0, clock.now + 2

        assert values(probes)["cpu_percent"] == 75  # 3 of 4 seconds

    def test_of_a_container_that_may_use_them_all_is_that_of_the_host(self, host, clock):
        cgroup = TwoCpus()
        host.setattr(psutil, "cpu_count", lambda: 2)
        probes = cpu_probes(cgroup, clock)
        values(probes)

        assert values(probes)["cpu_percent"] == 37.0

    def test_of_this_process_is_more_than_nothing_where_it_works(self):
        probes = cpu_probes(Cgroup())
        values(probes)
        sum(range(3_000_000))

        assert values(probes)["process_cpu_percent"] > 0

    def test_temperature_is_that_of_the_hottest_sensor(self, host):
        entry = type("Entry", (), {})
        entries = []
        for celsius in (55.0, 71.0, 64.0):
            made = entry()
            made.current = celsius
            entries.append(made)
        host.setattr(psutil, "sensors_temperatures", lambda: {"coretemp": entries, "nvme": [entries[1]]})

        assert values(cpu_probes(Unlimited()))["cpu_celsius"] == 71.0

    def test_temperature_is_left_out_where_there_is_no_sensor(self, host):
        host.setattr(psutil, "sensors_temperatures", lambda: {"nvme": []})

        assert "cpu_celsius" not in values(cpu_probes(Unlimited()))

    def test_temperature_is_left_out_where_the_system_has_no_such_function(self, host):
        host.delattr(psutil, "sensors_temperatures")

        assert "cpu_celsius" not in values(cpu_probes(Unlimited()))


class TestMemory:
    def test_is_that_of_system_swap_and_process(self, monkeypatch):
        memory = psutil.virtual_memory()._replace(total=8 * GB, available=6 * GB, used=2 * GB, percent=25.0)
        swap = psutil.swap_memory()._replace(total=4 * GB, free=3 * GB, used=GB, percent=25.0)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
        monkeypatch.setattr(psutil, "swap_memory", lambda: swap)
        found = values(memory_probes(Unlimited()))

        assert found.pop("process_memory_gb") == pytest.approx(process_memory() / GB, rel=0.1)
        assert found == {"memory_used_gb": 2, "memory_percent": 25.0, "swap_used_gb": 1, "swap_percent": 25.0}

    def test_of_a_container_is_its_own(self):
        class Small(Unlimited):
            def memory(self):
                return Usage(2 * MB, MB)

        found = values(memory_probes(Small()))

        assert (found["memory_used_gb"], found["memory_percent"]) == (1 / 1024, 50)


class Counters:
    """What psutil says of disks and interfaces: MB."""

    read_bytes = bytes_recv = 100 * MB
    write_bytes = bytes_sent = 50 * MB


class TestTraffic:
    @pytest.mark.parametrize(
        ("function", "probes_of", "names"),
        [
            (
                "disk_io_counters",
                lambda clock: disk_probes("/", clock)[:1],
                ("disk_read_mb_per_s", "disk_write_mb_per_s"),
            ),
            ("net_io_counters", network_probes, ("net_received_mb_per_s", "net_sent_mb_per_s")),
        ],
    )
    def test_is_what_was_moved_by_the_time(self, monkeypatch, clock, function, probes_of, names):
        counters = Counters()
        monkeypatch.setattr(psutil, function, lambda: counters)
        probes = probes_of(clock)
        assert values(probes) == dict.fromkeys(names)

        counters.read_bytes = counters.bytes_recv = 160 * MB
        counters.write_bytes = counters.bytes_sent = 51 * MB
        clock.pass_(2)

        assert values(probes) == dict(zip(names, (30, 0.5), strict=True))

    def test_of_disks_that_are_not_counted_cannot_be_read(self, monkeypatch):
        monkeypatch.setattr(psutil, "disk_io_counters", lambda: None)

        with pytest.raises(OSError, match="counts no disk traffic"):
            disk_probes("/")[0].read()


def test_the_disk_is_that_of_the_path(tmp_path):
    assert values(disk_probes(tmp_path)[1:]) == {"disk_percent": psutil.disk_usage(str(tmp_path)).percent}
