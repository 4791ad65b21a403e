import psutil
import pytest

from hookbus_system_monitor.cgroup import Cgroup, Usage
from hookbus_system_monitor.host import build_cpu_probes, build_disk_probes, build_memory_probes, build_network_probes
from hookbus_system_monitor.memory import get_process_memory
from hookbus_system_monitor.readings import Reader

MB, GB = 2**20, 2**30


class Unlimited:
    """Control group without limits."""

    def get_memory(self):
        return None

    get_swap = get_cpus = get_cpu_seconds = get_memory


class TwoCpus(Unlimited):
    """Control group limited to two CPUs."""

    used = 10.0

    def get_cpus(self):
        return 2.0

    def get_cpu_seconds(self):
        return self.used


def read_values(probes):
    return {name: value for probe in probes for name, value in zip(probe.names, probe.read(), strict=True)}


@pytest.fixture
def host(monkeypatch):
    """Fake a host of 8 CPUs without sensors, whose first utilization is the meaningless 0."""
    readings = iter([0.0, 37.0, 41.0])
    monkeypatch.setattr(psutil, "cpu_percent", lambda: next(readings))
    monkeypatch.setattr(psutil, "cpu_count", lambda: 8)
    monkeypatch.setattr(psutil, "sensors_temperatures", dict, raising=False)
    return monkeypatch


class TestCpu:
    def test_first_reading_has_no_utilization(self, host):
        probes = build_cpu_probes(Unlimited())

        assert read_values(probes) == {"cpu_percent": None, "process_cpu_percent": None}
        assert [read_values(probes)["cpu_percent"] for _ in range(2)] == [37.0, 41.0]

    def test_utilization_in_a_container_is_relative_to_its_limit(self, host, clock):
        cgroup = TwoCpus()
        probes = build_cpu_probes(cgroup, clock)
        read_values(probes)
        cgroup.used, clock.now = 13.0, clock.now + 2

        assert read_values(probes)["cpu_percent"] == 75  # 3 of 4 seconds

    def test_utilization_without_a_lower_limit_is_that_of_the_host(self, host, clock):
        cgroup = TwoCpus()
        host.setattr(psutil, "cpu_count", lambda: 2)
        probes = build_cpu_probes(cgroup, clock)
        read_values(probes)

        assert read_values(probes)["cpu_percent"] == 37.0

    def test_utilization_of_the_process_is_that_since_the_last_reading_of_the_same_probes(self, host):
        class Process:
            calls = 0

            def cpu_percent(self):
                self.calls += 1
                return float(self.calls)

        host.setattr(psutil, "Process", Process)
        first, second = (build_cpu_probes(Unlimited())[1] for _ in range(2))

        assert [list(probe.read()) for probe in (first, second, first, second)] == [[None], [None], [2.0], [2.0]]

    def test_utilization_of_a_busy_process_is_positive(self):
        probes = build_cpu_probes(Cgroup())
        read_values(probes)
        sum(range(3_000_000))

        assert read_values(probes)["process_cpu_percent"] > 0

    def test_temperature_is_that_of_the_hottest_sensor(self, host):
        entry = type("Entry", (), {})
        entries = []
        for celsius in (55.0, 71.0, 64.0):
            reading = entry()
            reading.current = celsius
            entries.append(reading)
        host.setattr(psutil, "sensors_temperatures", lambda: {"coretemp": entries, "nvme": [entries[1]]})

        assert read_values(build_cpu_probes(Unlimited()))["cpu_celsius"] == 71.0

    def test_temperature_is_omitted_without_a_sensor(self, host):
        host.setattr(psutil, "sensors_temperatures", lambda: {"nvme": []})

        assert "cpu_celsius" not in read_values(build_cpu_probes(Unlimited()))

    def test_temperature_is_omitted_if_psutil_does_not_support_it(self, host):
        host.delattr(psutil, "sensors_temperatures")

        assert "cpu_celsius" not in read_values(build_cpu_probes(Unlimited()))


class TestMemory:
    def test_memory_includes_system_swap_and_process(self, monkeypatch):
        memory = psutil.virtual_memory()._replace(total=8 * GB, available=6 * GB, used=2 * GB, percent=25.0)
        swap = psutil.swap_memory()._replace(total=4 * GB, free=3 * GB, used=GB, percent=25.0)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
        monkeypatch.setattr(psutil, "swap_memory", lambda: swap)
        memory = read_values(build_memory_probes(Unlimited()))

        assert memory.pop("process_memory_gb") == pytest.approx(get_process_memory() / GB, rel=0.1)
        assert memory == {"memory_used_gb": 2, "memory_percent": 25.0, "swap_used_gb": 1, "swap_percent": 25.0}

    def test_memory_of_a_container_is_relative_to_its_limit(self):
        class Small(Unlimited):
            def get_memory(self):
                return Usage(2 * MB, MB)

        memory = read_values(build_memory_probes(Small()))

        assert (memory["memory_used_gb"], memory["memory_percent"]) == (1 / 1024, 50)


class Counters:
    """Fake psutil counters of disks and network interfaces."""

    read_bytes = bytes_recv = 100 * MB
    write_bytes = bytes_sent = 50 * MB


class TestTraffic:
    @pytest.mark.parametrize(
        ("function", "build_probes", "names"),
        [
            (
                "disk_io_counters",
                lambda clock: build_disk_probes("/", clock)[:1],
                ("disk_read_mb_per_s", "disk_write_mb_per_s"),
            ),
            ("net_io_counters", build_network_probes, ("net_received_mb_per_s", "net_sent_mb_per_s")),
        ],
    )
    def test_traffic_is_the_number_of_bytes_per_second(self, monkeypatch, clock, function, build_probes, names):
        counters = Counters()
        monkeypatch.setattr(psutil, function, lambda: counters)
        probes = build_probes(clock)
        assert read_values(probes) == dict.fromkeys(names)

        counters.read_bytes = counters.bytes_recv = 160 * MB
        counters.write_bytes = counters.bytes_sent = 51 * MB
        clock.advance(2)

        assert read_values(probes) == dict(zip(names, (30, 0.5), strict=True))

    def test_missing_disk_counters_raise(self, monkeypatch):
        monkeypatch.setattr(psutil, "disk_io_counters", lambda: None)

        with pytest.raises(OSError, match="no disk counters"):
            build_disk_probes("/")[0].read()


def test_disk_usage_is_that_of_the_path(tmp_path):
    assert read_values(build_disk_probes(tmp_path)[1:]) == {"disk_percent": psutil.disk_usage(str(tmp_path)).percent}


ERRORS = [
    psutil.AccessDenied(1),
    psutil.ZombieProcess(1),
    psutil.NoSuchProcess(1),
    NotImplementedError("not on this platform"),
    OSError("no such file"),
    RuntimeError("garbage"),
    AttributeError("no such function"),
]
NAMES = {
    "virtual_memory": {"memory_used_gb", "memory_percent"},
    "swap_memory": {"swap_used_gb", "swap_percent"},
    "Process.memory_info": {"process_memory_gb"},
    "cpu_percent": {"cpu_percent"},
    "Process.cpu_percent": {"process_cpu_percent"},
    "disk_io_counters": {"disk_read_mb_per_s", "disk_write_mb_per_s"},
    "disk_usage": {"disk_percent"},
    "net_io_counters": {"net_received_mb_per_s", "net_sent_mb_per_s"},
}


def build_all_probes(clock):
    cgroup = Unlimited()
    return [
        *build_cpu_probes(cgroup, clock),
        *build_memory_probes(cgroup),
        *build_disk_probes("/", clock),
        *build_network_probes(clock),
    ]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("function", NAMES)
def test_failing_function_of_psutil_affects_only_its_values(host, clock, function, error):
    host.setattr(psutil, "cpu_percent", lambda: 37.0)
    owner, name = (psutil.Process, function.removeprefix("Process.")) if "." in function else (psutil, function)

    def fail(*_):
        raise error

    host.setattr(owner, name, fail)
    probes, lines = build_all_probes(clock), []
    reader = Reader(lines.append)
    for _ in range(3):
        clock.advance(1)
        values = {key: value for probe in probes for key, value in reader.read(probe).items()}

    assert {key for key, value in values.items() if value is None} == NAMES[function]
    assert len(lines) == 1


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_sensors_that_fail_at_the_start_are_omitted(host, error):
    def fail():
        raise error

    host.setattr(psutil, "sensors_temperatures", fail)

    assert "cpu_celsius" not in read_values(build_cpu_probes(Unlimited()))


def test_sensor_that_vanishes_or_has_no_value_is_unavailable(host):
    entry = type("Entry", (), {"current": 55.0})
    host.setattr(psutil, "sensors_temperatures", lambda: {"coretemp": [entry]})
    temperature = build_cpu_probes(Unlimited())[-1]
    entry.current = None

    with pytest.raises(OSError, match="no CPU sensor"):
        temperature.read()


def test_missing_network_counters_raise(monkeypatch):
    monkeypatch.setattr(psutil, "net_io_counters", lambda: None)

    with pytest.raises(OSError, match="no network counters"):
        build_network_probes()[0].read()


@pytest.mark.parametrize("method", ["get_cpus", "get_cpu_seconds"])
def test_unknown_limit_of_a_container_is_not_replaced_by_the_host(host, clock, method):
    def fail():
        raise ValueError("cpu.max: expected an integer, got 'x'")

    cgroup = TwoCpus()
    probe = build_cpu_probes(cgroup, clock)[0]
    probe.read()
    setattr(cgroup, method, fail)

    assert Reader([].append).read(probe) == {"cpu_percent": None}


def test_container_without_a_cpu_time_has_no_utilization(host):
    cgroup = TwoCpus()
    cgroup.used = None

    with pytest.raises(OSError, match="the CPU time of the control group is unknown"):
        build_cpu_probes(cgroup)[0].read()
