from operator import methodcaller

import pytest

from hookbus_system_monitor.cgroup import Cgroup, Usage

NO_LIMIT_V1 = 9223372036854771712


def build_cgroup(tmp_path, own, files):
    """Create a tree of control groups from the content of `/proc/self/cgroup` and of files by path."""
    root, proc = tmp_path / "cgroup", tmp_path / "own"
    root.mkdir()
    proc.write_text(own)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return Cgroup(root, proc)


V1 = "9:name=systemd:/\n5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n"


class TestMemory:
    def test_v2_usage_excludes_inactive_page_cache(self, tmp_path):
        files = {"memory.max": 1000, "memory.current": 600, "memory.stat": "anon 300\ninactive_file 250"}

        assert build_cgroup(tmp_path, "0::/\n", files).get_memory() == Usage(1000, 350)

    def test_v1_usage_excludes_inactive_page_cache(self, tmp_path):
        files = {
            "memory/docker/abc/memory.limit_in_bytes": 1000,
            "memory/docker/abc/memory.usage_in_bytes": 600,
            "memory/docker/abc/memory.stat": "inactive_file 1\ntotal_inactive_file 250",
        }
        assert build_cgroup(tmp_path, V1, files).get_memory() == Usage(1000, 350)

    def test_lowest_limit_of_the_ancestors_applies(self, tmp_path):
        files = {
            "a/memory.max": 500,
            "a/memory.current": 400,
            "a/b/memory.max": 800,
            "a/b/memory.current": 100,
        }
        assert build_cgroup(tmp_path, "0::/a/b\n", files).get_memory() == Usage(500, 400)

    def test_v2_memory_without_a_limit_is_none(self, tmp_path):
        files = {"memory.max": "max", "memory.current": 600}

        assert build_cgroup(tmp_path, "0::/\n", files).get_memory() is None

    def test_v1_memory_without_a_limit_is_none(self, tmp_path):
        files = {"memory/memory.limit_in_bytes": NO_LIMIT_V1, "memory/memory.usage_in_bytes": 600}

        assert build_cgroup(tmp_path, V1, files).get_memory() is None

    def test_limit_of_a_container_is_read_from_the_mounted_root(self, tmp_path):
        # The path is the host's; inside the container the group is mounted as the root.
        files = {"memory/memory.limit_in_bytes": 1000, "memory/memory.usage_in_bytes": 600}

        assert build_cgroup(tmp_path, V1, files).get_memory() == Usage(1000, 600)

    def test_all_values_are_none_without_cgroups(self, tmp_path):
        cgroup = Cgroup(tmp_path / "missing", tmp_path / "also missing")

        assert (cgroup.get_memory(), cgroup.get_swap(), cgroup.get_cpus(), cgroup.get_cpu_seconds()) == (
            None,
            None,
            None,
            None,
        )

    def test_memory_without_a_usage_is_none(self, tmp_path):
        assert build_cgroup(tmp_path, "0::/\n", {"memory.max": 1000}).get_memory() is None

    def test_limit_and_usage_are_read_on_each_call(self, tmp_path):
        cgroup = build_cgroup(tmp_path, "0::/\n", {"memory.max": 1000, "memory.current": 600})
        (tmp_path / "cgroup/memory.max").write_text("2000\n")
        (tmp_path / "cgroup/memory.current").write_text("700\n")

        assert cgroup.get_memory() == Usage(2000, 700)

    def test_memory_is_none_after_the_limit_is_removed(self, tmp_path):
        cgroup = build_cgroup(tmp_path, "0::/\n", {"memory.max": 1000, "memory.current": 600})
        (tmp_path / "cgroup/memory.max").write_text("max\n")

        assert cgroup.get_memory() is None

    def test_limit_set_after_construction_is_ignored(self, tmp_path):
        cgroup = build_cgroup(tmp_path, "0::/\n", {"memory.max": "max", "memory.current": 600})
        (tmp_path / "cgroup/memory.max").write_text("1000\n")

        assert cgroup.get_memory() is None


FILES_V2 = {
    "memory.max": 1000,
    "memory.current": 600,
    "memory.stat": "inactive_file 250",
    "memory.swap.max": 300,
    "memory.swap.current": 20,
    "cpu.max": "150000 100000",
    "cpu.stat": "usage_usec 2500000",
}
FILES_V1 = {
    "memory/docker/abc/memory.limit_in_bytes": 1000,
    "memory/docker/abc/memory.usage_in_bytes": 600,
    "memory/docker/abc/memory.memsw.limit_in_bytes": 1500,
    "memory/docker/abc/memory.memsw.usage_in_bytes": 640,
    "cpu/docker/abc/cpu.cfs_quota_us": 150000,
    "cpu/docker/abc/cpu.cfs_period_us": 100000,
    "cpuacct/docker/abc/cpuacct.usage": 2_500_000_000,
}
READ = {
    "memory.max": methodcaller("get_memory"),
    "memory.current": methodcaller("get_memory"),
    "memory.stat": methodcaller("get_memory"),
    "memory.swap.max": methodcaller("get_swap"),
    "memory.swap.current": methodcaller("get_swap"),
    "cpu.max": methodcaller("get_cpus"),
    "cpu.stat": methodcaller("get_cpu_seconds"),
    "memory.limit_in_bytes": methodcaller("get_memory"),
    "memory.usage_in_bytes": methodcaller("get_memory"),
    "memory.memsw.limit_in_bytes": methodcaller("get_swap"),
    "memory.memsw.usage_in_bytes": methodcaller("get_swap"),
    "cpu.cfs_quota_us": methodcaller("get_cpus"),
    "cpu.cfs_period_us": methodcaller("get_cpus"),
    "cpuacct.usage": methodcaller("get_cpu_seconds"),
}
CASES = [("0::/\n", FILES_V2, name) for name in FILES_V2] + [(V1, FILES_V1, name) for name in FILES_V1]


class TestUnreadableFiles:
    """A value that is unknown raises: neither 0 nor the value of the host is correct."""

    @pytest.mark.parametrize(("own", "files", "name"), CASES)
    @pytest.mark.parametrize("content", ["garbage", "", "\x00", "1 2 3"])
    def test_invalid_file_raises_with_its_path(self, tmp_path, own, files, name, content):
        cgroup = build_cgroup(tmp_path, own, files)
        path = tmp_path / "cgroup" / name
        path.write_text(content)

        with pytest.raises(ValueError, match=path.name):
            READ[path.name](cgroup)

    @pytest.mark.parametrize(("own", "files", "name"), CASES)
    def test_file_that_is_invalid_from_the_start_raises(self, tmp_path, own, files, name):
        cgroup = build_cgroup(tmp_path, own, files | {name: "garbage"})

        with pytest.raises(ValueError, match=name.rpartition("/")[2]):
            READ[name.rpartition("/")[2]](cgroup)

    @pytest.mark.parametrize(("own", "files", "name"), [case for case in CASES if case[2] != "memory.stat"])
    def test_file_that_vanishes_raises(self, tmp_path, own, files, name):
        cgroup = build_cgroup(tmp_path, own, files)
        path = tmp_path / "cgroup" / name
        path.unlink()

        with pytest.raises(FileNotFoundError, match=path.name):
            READ[path.name](cgroup)

    @pytest.mark.parametrize(("own", "files", "name"), CASES)
    def test_file_that_cannot_be_read_raises(self, tmp_path, own, files, name):
        # A directory raises an OSError other than "not found", as a missing permission does, also for root.
        cgroup = build_cgroup(tmp_path, own, {key: text for key, text in files.items() if key != name})
        (tmp_path / "cgroup" / name).mkdir(parents=True)
        cgroup = Cgroup(tmp_path / "cgroup", tmp_path / "own")

        with pytest.raises(IsADirectoryError):
            READ[name.rpartition("/")[2]](cgroup)

    def test_bytes_that_are_no_text_raise(self, tmp_path):
        cgroup = build_cgroup(tmp_path, "0::/\n", FILES_V2)
        (tmp_path / "cgroup" / "memory.max").write_bytes(b"\xff\xfe")

        with pytest.raises(ValueError, match="memory.max: expected an integer"):
            cgroup.get_memory()

    def test_own_groups_that_cannot_be_read_are_no_groups(self, tmp_path):
        (tmp_path / "own").write_bytes(b"\xff\xfe:\x00")

        assert Cgroup(tmp_path, tmp_path / "own").get_memory() is None
        assert Cgroup(tmp_path, tmp_path).get_memory() is None


class TestSwap:
    def test_v2_swap_has_its_own_limit(self, tmp_path):
        files = {"memory.swap.max": 300, "memory.swap.current": 20}

        assert build_cgroup(tmp_path, "0::/\n", files).get_swap() == Usage(300, 20)

    def test_v1_swap_is_the_difference_of_memsw_and_memory(self, tmp_path):
        files = {
            "memory/docker/abc/memory.limit_in_bytes": 1000,
            "memory/docker/abc/memory.usage_in_bytes": 600,
            "memory/docker/abc/memory.memsw.limit_in_bytes": 1500,
            "memory/docker/abc/memory.memsw.usage_in_bytes": 640,
        }
        assert build_cgroup(tmp_path, V1, files).get_swap() == Usage(500, 40)

    def test_v1_swap_without_accounting_is_none(self, tmp_path):
        files = {"memory/memory.limit_in_bytes": NO_LIMIT_V1, "memory/memory.usage_in_bytes": 600}

        assert build_cgroup(tmp_path, V1, files).get_swap() is None


class TestCpu:
    @pytest.mark.parametrize(("text", "cpus"), [("150000 100000", 1.5), ("max 100000", None)])
    def test_v2_cpu_limit_is_quota_divided_by_period(self, tmp_path, text, cpus):
        assert build_cgroup(tmp_path, "0::/\n", {"cpu.max": text}).get_cpus() == cpus

    @pytest.mark.parametrize(("quota", "cpus"), [(400000, 4), (-1, None)])
    def test_v1_cpu_limit_is_quota_divided_by_period(self, tmp_path, quota, cpus):
        files = {"cpu/docker/abc/cpu.cfs_quota_us": quota, "cpu/docker/abc/cpu.cfs_period_us": 100000}

        assert build_cgroup(tmp_path, V1, files).get_cpus() == cpus

    def test_lowest_limit_of_the_ancestors_applies(self, tmp_path):
        files = {"a/cpu.max": "100000 100000", "a/b/cpu.max": "300000 100000"}

        assert build_cgroup(tmp_path, "0::/a/b\n", files).get_cpus() == 1

    def test_v2_cpu_time_is_that_of_the_group(self, tmp_path):
        files = {"cpu.stat": "usage_usec 99000000", "a/cpu.stat": "usage_usec 2500000\nuser_usec 1"}

        assert build_cgroup(tmp_path, "0::/a\n", files).get_cpu_seconds() == 2.5

    def test_v1_cpu_time_is_that_of_the_group(self, tmp_path):
        files = {"cpuacct/docker/abc/cpuacct.usage": 2_500_000_000}

        assert build_cgroup(tmp_path, V1, files).get_cpu_seconds() == 2.5


def test_cgroup_of_this_process_is_readable():
    cgroup = Cgroup()
    used = cgroup.get_cpu_seconds()

    assert used is None or used > 0
    assert cgroup.get_memory() is None or cgroup.get_memory().limit > 0
