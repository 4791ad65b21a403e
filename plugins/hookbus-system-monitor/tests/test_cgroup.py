import pytest

from hookbus_system_monitor.cgroup import Cgroup, Usage

NO_LIMIT_V1 = 9223372036854771712


def cgroup_of(tmp_path, own, files):
    """A tree of control groups: what `/proc/self/cgroup` says, and files by path."""
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
    def test_of_v2_is_the_limit_and_what_cannot_be_dropped(self, tmp_path):
        files = {"memory.max": 1000, "memory.current": 600, "memory.stat": "anon 300\ninactive_file 250"}

        assert cgroup_of(tmp_path, "0::/\n", files).memory() == Usage(1000, 350)

    def test_of_v1_is_the_limit_and_what_cannot_be_dropped(self, tmp_path):
        files = {
            "memory/docker/abc/memory.limit_in_bytes": 1000,
            "memory/docker/abc/memory.usage_in_bytes": 600,
            "memory/docker/abc/memory.stat": "inactive_file 1\ntotal_inactive_file 250",
        }
        assert cgroup_of(tmp_path, V1, files).memory() == Usage(1000, 350)

    def test_is_the_tightest_of_the_groups_above(self, tmp_path):
        files = {
            "a/memory.max": 500,
            "a/memory.current": 400,
            "a/b/memory.max": 800,
            "a/b/memory.current": 100,
        }
        assert cgroup_of(tmp_path, "0::/a/b\n", files).memory() == Usage(500, 400)

    def test_without_limit_is_none(self, tmp_path):
        files = {"memory.max": "max", "memory.current": 600}

        assert cgroup_of(tmp_path, "0::/\n", files).memory() is None

    def test_of_v1_without_limit_is_none(self, tmp_path):
        files = {"memory/memory.limit_in_bytes": NO_LIMIT_V1, "memory/memory.usage_in_bytes": 600}

        assert cgroup_of(tmp_path, V1, files).memory() is None

    def test_of_a_container_that_sees_only_its_own_group_is_found_at_the_top(self, tmp_path):
        # The path is the host's; inside the container the group is mounted as the root.
        files = {"memory/memory.limit_in_bytes": 1000, "memory/memory.usage_in_bytes": 600}

        assert cgroup_of(tmp_path, V1, files).memory() == Usage(1000, 600)

    def test_is_none_where_there_are_no_groups(self, tmp_path):
        cgroup = Cgroup(tmp_path / "missing", tmp_path / "missing as well")

        assert (cgroup.memory(), cgroup.swap(), cgroup.cpus(), cgroup.cpu_seconds()) == (None, None, None, None)

    def test_without_a_reading_of_what_is_used_is_none(self, tmp_path):
        assert cgroup_of(tmp_path, "0::/\n", {"memory.max": 1000}).memory() is None

    def test_is_read_anew_each_time(self, tmp_path):
        cgroup = cgroup_of(tmp_path, "0::/\n", {"memory.max": 1000, "memory.current": 600})
        (tmp_path / "cgroup/memory.max").write_text("2000\n")
        (tmp_path / "cgroup/memory.current").write_text("700\n")

        assert cgroup.memory() == Usage(2000, 700)

    def test_is_none_where_the_group_has_lost_its_limit(self, tmp_path):
        cgroup = cgroup_of(tmp_path, "0::/\n", {"memory.max": 1000, "memory.current": 600})
        (tmp_path / "cgroup/memory.max").write_text("max\n")

        assert cgroup.memory() is None

    def test_is_not_looked_for_again_where_there_was_none(self, tmp_path):
        cgroup = cgroup_of(tmp_path, "0::/\n", {"memory.max": "max", "memory.current": 600})
        (tmp_path / "cgroup/memory.max").write_text("1000\n")

        assert cgroup.memory() is None


class TestSwap:
    def test_of_v2_has_a_limit_of_its_own(self, tmp_path):
        files = {"memory.swap.max": 300, "memory.swap.current": 20}

        assert cgroup_of(tmp_path, "0::/\n", files).swap() == Usage(300, 20)

    def test_of_v1_is_what_the_sum_leaves(self, tmp_path):
        files = {
            "memory/docker/abc/memory.limit_in_bytes": 1000,
            "memory/docker/abc/memory.usage_in_bytes": 600,
            "memory/docker/abc/memory.memsw.limit_in_bytes": 1500,
            "memory/docker/abc/memory.memsw.usage_in_bytes": 640,
        }
        assert cgroup_of(tmp_path, V1, files).swap() == Usage(500, 40)

    def test_of_v1_without_accounting_is_none(self, tmp_path):
        files = {"memory/memory.limit_in_bytes": NO_LIMIT_V1, "memory/memory.usage_in_bytes": 600}

        assert cgroup_of(tmp_path, V1, files).swap() is None


class TestCpu:
    @pytest.mark.parametrize(("text", "cpus"), [("150000 100000", 1.5), ("max 100000", None)])
    def test_of_v2_is_quota_by_period(self, tmp_path, text, cpus):
        assert cgroup_of(tmp_path, "0::/\n", {"cpu.max": text}).cpus() == cpus

    @pytest.mark.parametrize(("quota", "cpus"), [(400000, 4), (-1, None)])
    def test_of_v1_is_quota_by_period(self, tmp_path, quota, cpus):
        files = {"cpu/docker/abc/cpu.cfs_quota_us": quota, "cpu/docker/abc/cpu.cfs_period_us": 100000}

        assert cgroup_of(tmp_path, V1, files).cpus() == cpus

    def test_is_the_tightest_of_the_groups_above(self, tmp_path):
        files = {"a/cpu.max": "100000 100000", "a/b/cpu.max": "300000 100000"}

        assert cgroup_of(tmp_path, "0::/a/b\n", files).cpus() == 1

    def test_time_of_v2_is_in_the_group_itself(self, tmp_path):
        files = {"cpu.stat": "usage_usec 99000000", "a/cpu.stat": "usage_usec 2500000\nuser_usec 1"}

        assert cgroup_of(tmp_path, "0::/a\n", files).cpu_seconds() == 2.5

    def test_time_of_v1_is_in_the_group_itself(self, tmp_path):
        files = {"cpuacct/docker/abc/cpuacct.usage": 2_500_000_000}

        assert cgroup_of(tmp_path, V1, files).cpu_seconds() == 2.5


def test_the_group_of_this_process_can_be_asked():
    cgroup = Cgroup()
    used = cgroup.cpu_seconds()

    assert used is None or used > 0
    assert cgroup.memory() is None or cgroup.memory().limit > 0
