import shutil

import pytest

GB = 2**30

GPU = f"""
    {{i}}.uuid GPU-{{u}} {{i}}.use 40 {{i}}.celsius 61 {{i}}.milliwatts 250500 {{i}}.sm_mhz 1410 {{i}}.memory_mhz 1215
    {{i}}.millijoules 5000000 {{i}}.total {80 * GB} {{i}}.reserved {GB} {{i}}.used {20 * GB}
"""
"""GPU with 80 GB of memory: 20 GB used, 1 GB reserved by the driver."""

ONE = "count 1" + GPU.format(i=0, u="aa")
TWO = "count 2" + GPU.format(i=0, u="aa") + GPU.format(i=1, u="bb")
READ = {
    "percent": 40,
    "celsius": 61,
    "watts": 250.5,
    "sm_mhz": 1410,
    "memory_mhz": 1215,
    "joules": 0,
    "memory_used_gb": 20,
    "memory_percent": 25,
}


def expected_values(index, **changes):
    """Return the expected values of one GPU."""
    return {f"gpu{index}/{name}": value for name, value in (READ | changes).items()}


def missing_values(index):
    return dict.fromkeys(expected_values(index))


class TestReadings:
    @pytest.mark.slow
    def test_values_of_every_gpu_are_read(self, machine):
        assert machine.watch(TWO).read() == expected_values(0) | expected_values(1)
        assert machine.lines == {"info": [], "warnings": [], "unavailable": []}

    def test_memory_is_not_read_if_disabled(self, machine):
        assert set(machine.watch(ONE, memory=False).read()) == set(expected_values(0)) - {
            "gpu0/memory_used_gb",
            "gpu0/memory_percent",
        }

    def test_only_memory_is_read_if_use_is_disabled(self, machine):
        assert machine.watch(ONE, use=False).read() == {"gpu0/memory_used_gb": 20, "gpu0/memory_percent": 25}

    def test_machine_without_a_gpu_has_no_values(self, machine):
        assert machine.watch("count 0").read() == {}
        assert machine.lines == {"info": [], "warnings": [], "unavailable": []}

    def test_energy_starts_at_zero_and_continues_after_a_counter_reset(self, machine):
        machine.watch(ONE).read()

        assert machine.read(ONE.replace("5000000", "5007000"))["gpu0/joules"] == 7
        assert machine.read(ONE.replace("5000000", "2000"))["gpu0/joules"] == 9
        assert machine.read(ONE.replace("5000000", "4500"))["gpu0/joules"] == 11.5


class TestUnavailableValues:
    @pytest.mark.parametrize("code", [2, 3, 4, 13, 999])
    def test_unsupported_value_is_none_and_others_are_read(self, machine, code):
        assert machine.watch(f"{ONE} 0.use.error {code}").read() == expected_values(0, percent=None)

    @pytest.mark.parametrize("name", ["celsius", "milliwatts", "sm_mhz", "memory_mhz", "millijoules"])
    def test_each_value_fails_independently(self, machine, name):
        key = {"milliwatts": "watts", "millijoules": "joules"}.get(name, name)

        assert machine.watch(f"{ONE} 0.{name}.error 3").read() == expected_values(0, **{key: None})

    def test_failed_memory_query_affects_both_memory_values(self, machine):
        assert machine.watch(f"{ONE} 0.used.error 3").read() == expected_values(
            0, memory_used_gb=None, memory_percent=None
        )

    def test_unavailable_value_is_reported_once_in_fifty_readings(self, machine):
        assert machine.watch(f"{ONE} 0.use.error 3").read_times(50) == [expected_values(0, percent=None)] * 50
        assert machine.lines["unavailable"] == [
            "utilization of GPU 0 (GPU-aa) is unavailable: Not Supported. Its values are omitted until it is available."
        ]

    def test_unavailable_value_is_reported_once_per_gpu_and_value(self, machine):
        machine.watch(f"{TWO} 0.use.error 3 1.use.error 3 1.milliwatts.error 3").read_times(3)

        assert [line.split(" is unavailable")[0] for line in machine.lines["unavailable"]] == [
            "utilization of GPU 0 (GPU-aa)",
            "utilization of GPU 1 (GPU-bb)",
            "power of GPU 1 (GPU-bb)",
        ]

    def test_value_is_read_again_when_available(self, machine):
        machine.watch(f"{ONE} 0.use.error 999").read()

        assert machine.read(ONE) == expected_values(0)

    @pytest.mark.parametrize("key", ["use", "milliwatts", "sm_mhz", "celsius"])
    def test_missing_value_of_the_driver_is_none_and_not_a_huge_number(self, machine, key):
        name = {"use": "percent", "milliwatts": "watts"}.get(key, key)
        scenario = f"0.{key} {2**32 - 1} {ONE}"

        assert machine.watch(scenario).read() == expected_values(0, **{name: None})
        assert machine.lines["unavailable"][0].endswith(
            "is unavailable: the driver returns no value. Its values are omitted until it is available."
        )

    def test_total_memory_of_zero_is_no_memory(self, machine):
        assert machine.watch("count 1 0.total 0 0.used 5", use=False).read() == {
            "gpu0/memory_used_gb": None,
            "gpu0/memory_percent": None,
        }

    @pytest.mark.parametrize(
        ("missing", "names"),
        [
            ("nvmlDeviceGetUtilizationRates", ["percent"]),
            ("NVML_CLOCK_MEM", ["memory_mhz"]),
            ("nvmlDeviceGetTotalEnergyConsumption", ["joules"]),
            ("nvmlDeviceGetMemoryInfo", ["memory_used_gb", "memory_percent"]),
        ],
    )
    def test_value_that_the_binding_lacks_is_none_and_others_are_read(self, machine, missing, names):
        machine.watch(ONE)
        machine.remove_from_binding(missing)

        assert machine.read() == expected_values(0, **dict.fromkeys(names))
        assert missing in machine.lines["unavailable"][0]

    def test_binding_without_the_second_version_of_memory_uses_the_first(self, machine):
        machine.watch(ONE)
        machine.remove_from_binding("nvmlMemory_v2")

        assert machine.read() == expected_values(0, memory_used_gb=21, memory_percent=26.25)

    @pytest.mark.parametrize("missing", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"])
    def test_binding_that_cannot_find_gpus_is_one_info_message(self, machine, missing):
        machine.watch(ONE)
        machine.remove_from_binding(missing)

        assert machine.read_times(5) == [{}] * 5
        assert len(machine.lines["info"]) == 1
        assert missing in machine.lines["info"][0]

    @pytest.mark.parametrize("failure", ["0.uuid.error 999", "0.handle.error 3", "0.handle.error 999"])
    def test_gpu_without_a_uuid_or_handle_does_not_affect_others(self, machine, failure):
        assert machine.watch(f"{failure} {TWO}").read() == expected_values(1)
        assert machine.lines["warnings"][0].startswith("GPU 0 of this machine is unavailable: ")

    def test_gpu_that_cannot_report_its_mig_mode_is_read(self, machine):
        assert machine.watch(f"{ONE} 0.mig.error 999").read() == expected_values(0)

    def test_binding_without_mig_is_read(self, machine):
        machine.watch(ONE)
        machine.remove_from_binding("nvmlDeviceGetMigMode")

        assert machine.read() == expected_values(0)

    def test_gpu_whose_values_all_fail_is_reopened(self, machine):
        machine.watch(TWO).read()
        values = machine.read_times(5, f"0.error 2 {TWO}")

        assert values == [missing_values(0) | expected_values(1)] * 5
        assert machine.lines["warnings"] == [
            "GPU 0 is unavailable: none of its values can be read. Its values are omitted until it is available."
        ]
        assert machine.get_calls().count("open") > 1
        assert machine.read_times(20, TWO)[-1] == expected_values(0) | expected_values(1)


class TestMemory:
    def test_used_memory_excludes_memory_reserved_by_the_driver(self, machine):
        scenario = "count 1 0.total 1000 0.reserved 30 0.used 100"

        assert machine.watch(scenario, use=False).read() == {
            "gpu0/memory_used_gb": 100 / GB,
            "gpu0/memory_percent": 10,
        }

    @pytest.mark.slow
    def test_used_memory_of_an_old_driver_includes_reserved_memory(self, old_machine):
        scenario = "count 1 0.total 1000 0.reserved 30 0.used 100"

        assert old_machine.watch(scenario, use=False).read() == {
            "gpu0/memory_used_gb": 130 / GB,
            "gpu0/memory_percent": 13,
        }


@pytest.mark.slow
def test_missing_function_of_an_old_driver_is_an_unavailable_value(old_machine):
    assert old_machine.watch(ONE).read() == expected_values(0, joules=None, memory_used_gb=21, memory_percent=26.25)
    assert old_machine.lines["unavailable"] == [
        "energy of GPU 0 (GPU-aa) is unavailable: Function Not Found. Its values are omitted until it is available."
    ]


class TestDevicesOfTheRun:
    SMALL_AND_LARGE = (
        f"count 2 0.uuid GPU-aa 0.total {24 * GB} 0.used {6 * GB} 1.uuid GPU-bb 1.total {8 * GB} 1.used {GB}"
    )

    @pytest.mark.parametrize("entry", [1, "GPU-bb", "GPU-b", "bb"])
    def test_device_is_found_by_index_and_uuid(self, machine, entry):
        assert machine.watch(self.SMALL_AND_LARGE, [entry], use=False).read() == {
            "gpu0/memory_used_gb": 1,
            "gpu0/memory_percent": 12.5,
        }

    def test_devices_have_the_order_of_the_run(self, machine):
        values = machine.watch(self.SMALL_AND_LARGE, [1, 0], use=False).read()

        assert (values["gpu0/memory_used_gb"], values["gpu1/memory_used_gb"]) == (1, 6)

    def test_run_without_devices_has_no_values(self, machine):
        assert machine.watch(TWO, []).read() == {}

    @pytest.mark.parametrize("entry", [0, "GPU-aa", "MIG-second"])
    def test_device_is_an_instance_of_a_mig_gpu(self, machine, entry):
        # Index 0 of the two is empty. A MIG instance has its own memory and no utilization.
        scenario = f"{ONE} 0.parts 2 0:1.uuid MIG-second 0:1.total {10 * GB} 0:1.used {4 * GB}"

        values = machine.watch(scenario, [entry]).read()

        assert values == {**missing_values(0), "gpu0/memory_used_gb": 4, "gpu0/memory_percent": 40}
        assert len(machine.lines["unavailable"]) == 6


class TestLostGpu:
    @pytest.mark.parametrize("code", [15, 16])
    def test_lost_gpu_does_not_affect_other_gpus(self, machine, code):
        machine.watch(TWO).read()

        assert machine.read_times(20, f"{TWO} 1.error {code}") == [expected_values(0) | missing_values(1)] * 20

    def test_loss_and_recovery_of_a_gpu_are_reported_once(self, machine):
        machine.watch(TWO).read()
        machine.read_times(20, f"{TWO} 1.error 15")
        values = machine.read_times(20, TWO)

        assert values[-1] == expected_values(0) | expected_values(1)
        assert machine.lines == {
            "info": ["the NVIDIA driver is available again, with 2 GPUs."],
            "warnings": ["GPU 1 is unavailable: GPU is lost. Its values are omitted until it is available."],
            "unavailable": [],
        }

    def test_second_loss_of_a_gpu_is_reported_again(self, machine):
        machine.watch(TWO).read()
        for _ in range(2):
            machine.read_times(5, f"{TWO} 1.error 15")
            machine.read_times(20, TWO)

        assert (len(machine.lines["warnings"]), len(machine.lines["info"])) == (2, 2)

    def test_attempts_to_reopen_a_lost_gpu_back_off_exponentially(self, machine):
        machine.watch(TWO).read()
        machine.read_times(50, f"{TWO} 1.error 15")

        # Lost in reading 1 of 50; reinitialized in 3, 6, 11, 20 and 37, with 1, 2, 4, 8 and 16 readings in between.
        assert machine.get_calls().count("open") == 1 + 5

    def test_gpu_without_a_handle_does_not_affect_other_gpus(self, machine):
        machine.watch(TWO).read()
        machine.read_times(1, f"{TWO} 0.error 15")

        assert machine.read_times(4, f"{TWO} 0.handle.error 15")[-1] == missing_values(0) | expected_values(1)
        assert machine.read_times(20, TWO)[-1] == expected_values(0) | expected_values(1)

    def test_lost_gpu_is_ignored_by_a_run_that_does_not_use_it(self, machine):
        machine.watch(f"{TWO} 0.handle.error 15", [1])

        assert machine.read_times(5) == [expected_values(0)] * 5
        assert (machine.get_calls(), machine.lines["info"]) == (["open"], [])

    def test_lost_gpu_does_not_change_the_index_of_others(self, machine):
        assert machine.watch(f"{TWO} 0.handle.error 15").read() == expected_values(1)


class TestUnloadedDriver:
    @pytest.mark.parametrize("failure", ["all 1", "all 18", "generation 2", "init 9 all 9"])
    def test_unloaded_driver_has_no_values_and_raises_no_error(self, machine, failure):
        machine.watch(ONE).read()

        assert machine.read(f"{ONE} {failure}") == missing_values(0)
        assert len(machine.lines["warnings"]) == 1

    @pytest.mark.parametrize("failure", ["all 1", "all 18", "init 9 all 9"])
    def test_driver_is_used_again_when_available(self, machine, failure):
        machine.watch(ONE).read()
        machine.read_times(10, f"{ONE} {failure}")

        assert machine.read_times(10, ONE)[-1] == expected_values(0)
        assert machine.lines["info"] == ["the NVIDIA driver is available again, with 1 GPU."]

    def test_reloaded_driver_is_reinitialized(self, machine):
        machine.watch(ONE).read()

        assert machine.read_times(3, f"{ONE} generation 2") == [
            missing_values(0),
            missing_values(0),
            expected_values(0),
        ]

    def test_missing_driver_at_the_start_is_one_info_message(self, machine):
        machine.watch("init 9")

        assert machine.read_times(30) == [{}] * 30
        assert machine.lines == {
            "info": [
                "the NVIDIA driver is unavailable: Driver Not Loaded. Its values are omitted until it is available."
            ],
            "warnings": [],
            "unavailable": [],
        }

    def test_driver_loaded_after_the_start_is_used(self, machine):
        machine.watch("init 9").read_times(3)

        assert machine.read_times(10, ONE)[-1] == expected_values(0)


class TestMissingLibrary:
    @pytest.mark.slow
    def test_missing_library_is_one_info_message_and_used_when_installed(self, bare_machine, driver):
        bare_machine.watch(ONE)
        assert bare_machine.read_times(5) == [{}] * 5
        assert bare_machine.lines["info"] == [
            "the NVIDIA driver is unavailable: NVML Shared Library Not Found. "
            "Its values are omitted until it is available."
        ]

        shutil.copy(driver / "libnvidia-ml.so.1", bare_machine.library)

        assert bare_machine.read_times(10)[-1] == expected_values(0)


@pytest.mark.slow
class TestInvalidLibrary:
    """Tests with a file that has the name of NVML and other content."""

    def test_file_that_is_no_library_is_one_info_message(self, bare_machine):
        (bare_machine.library / "libnvidia-ml.so.1").write_text("not a library")

        assert bare_machine.watch(ONE).read_times(5) == [{}] * 5
        assert bare_machine.lines["info"] == [
            "the NVIDIA driver is unavailable: NVML Shared Library Not Found. "
            "Its values are omitted until it is available."
        ]

    def test_foreign_library_is_one_info_message(self, foreign_machine):
        assert foreign_machine.watch(ONE).read_times(5) == [{}] * 5
        assert foreign_machine.lines["info"] == [
            "the NVIDIA driver is unavailable: Function Not Found. Its values are omitted until it is available."
        ]


class TestInitialization:
    def test_nvml_is_shut_down_as_often_as_initialized(self, machine):
        machine.watch(ONE).read()
        machine.read_times(10, f"{ONE} all 1")
        machine.read_times(10, ONE)
        machine.close()
        machine.close()

        assert machine.get_calls() == ["open", "close"] * (len(machine.get_calls()) // 2)

    @pytest.mark.parametrize("failure", ["shutdown 999", "shutdown 1"])
    def test_failure_of_the_shutdown_is_ignored(self, machine, failure):
        machine.watch(f"{ONE} {failure}").read()
        machine.close()

        assert machine.read() == expected_values(0)

    def test_closed_provider_is_reinitialized_by_a_read(self, machine):
        machine.watch(ONE).read()
        machine.close()

        assert machine.read() == expected_values(0)
