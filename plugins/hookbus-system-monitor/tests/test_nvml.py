import shutil

import pytest

GB = 2**30

GPU = f"""
    {{i}}.uuid GPU-{{u}} {{i}}.use 40 {{i}}.celsius 61 {{i}}.milliwatts 250500 {{i}}.sm_mhz 1410 {{i}}.memory_mhz 1215
    {{i}}.millijoules 5000000 {{i}}.total {80 * GB} {{i}}.reserved {GB} {{i}}.used {20 * GB}
"""
"""A GPU of 80 GB of which 20 are used, 1 is the driver's."""

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


def of(index, **changes):
    """What is read of one GPU."""
    return {f"gpu{index}/{name}": value for name, value in (READ | changes).items()}


def nothing_of(index):
    return dict.fromkeys(of(index))


class TestReadings:
    def test_are_those_of_every_gpu(self, machine):
        assert machine.watch(TWO).read() == of(0) | of(1)
        assert machine.lines == {"told": [], "warned": [], "complained": []}

    def test_leave_memory_out_where_it_is_not_wanted(self, machine):
        assert set(machine.watch(ONE, memory=False).read()) == set(of(0)) - {
            "gpu0/memory_used_gb",
            "gpu0/memory_percent",
        }

    def test_are_memory_only_where_the_rest_is_not_wanted(self, machine):
        assert machine.watch(ONE, use=False).read() == {"gpu0/memory_used_gb": 20, "gpu0/memory_percent": 25}

    def test_are_none_where_there_is_no_gpu(self, machine):
        assert machine.watch("count 0").read() == {}
        assert machine.lines == {"told": [], "warned": [], "complained": []}

    def test_of_energy_begin_at_zero_and_go_on_when_the_counter_begins_again(self, machine):
        machine.watch(ONE).read()

        assert machine.read(ONE.replace("5000000", "5007000"))["gpu0/joules"] == 7
        assert machine.read(ONE.replace("5000000", "2000"))["gpu0/joules"] == 9
        assert machine.read(ONE.replace("5000000", "4500"))["gpu0/joules"] == 11.5


class TestANumberThatCannotBeHad:
    @pytest.mark.parametrize("code", [2, 3, 4, 13, 999])
    def test_is_none_and_the_others_are_there(self, machine, code):
        assert machine.watch(f"{ONE} 0.use.error {code}").read() == of(0, percent=None)

    @pytest.mark.parametrize("name", ["celsius", "milliwatts", "sm_mhz", "memory_mhz", "millijoules"])
    def test_stands_alone_whichever_it_is(self, machine, name):
        ours = {"milliwatts": "watts", "millijoules": "joules"}.get(name, name)

        assert machine.watch(f"{ONE} 0.{name}.error 3").read() == of(0, **{ours: None})

    def test_takes_both_numbers_of_memory_along(self, machine):
        assert machine.watch(f"{ONE} 0.used.error 3").read() == of(0, memory_used_gb=None, memory_percent=None)

    def test_is_told_once_in_fifty_readings(self, machine):
        assert machine.watch(f"{ONE} 0.use.error 3").reads(50) == [of(0, percent=None)] * 50
        assert machine.lines["complained"] == [
            "use of GPU 0 (GPU-aa) cannot be read (Not Supported): there is no value for it as long as that lasts."
        ]

    def test_is_told_once_for_each_gpu_and_number(self, machine):
        machine.watch(f"{TWO} 0.use.error 3 1.use.error 3 1.milliwatts.error 3").reads(3)

        assert [line.split(" cannot")[0] for line in machine.lines["complained"]] == [
            "use of GPU 0 (GPU-aa)",
            "use of GPU 1 (GPU-bb)",
            "power of GPU 1 (GPU-bb)",
        ]

    def test_is_there_again_when_it_can_be_read(self, machine):
        machine.watch(f"{ONE} 0.use.error 999").read()

        assert machine.read(ONE) == of(0)


class TestMemory:
    def test_that_the_driver_reserves_is_not_used(self, machine):
        scenario = "count 1 0.total 1000 0.reserved 30 0.used 100"

        assert machine.watch(scenario, use=False).read() == {
            "gpu0/memory_used_gb": 100 / GB,
            "gpu0/memory_percent": 10,
        }

    def test_of_an_old_driver_is_what_that_knows(self, old_machine):
        scenario = "count 1 0.total 1000 0.reserved 30 0.used 100"

        assert old_machine.watch(scenario, use=False).read() == {
            "gpu0/memory_used_gb": 130 / GB,
            "gpu0/memory_percent": 13,
        }


def test_a_call_that_an_old_driver_does_not_have_is_a_number_that_cannot_be_had(old_machine):
    assert old_machine.watch(ONE).read() == of(0, joules=None, memory_used_gb=21, memory_percent=26.25)
    assert old_machine.lines["complained"] == [
        "energy of GPU 0 (GPU-aa) cannot be read (Function Not Found): there is no value for it as long as that lasts."
    ]


class TestTheDevicesOfTheRun:
    SMALL_AND_LARGE = (
        f"count 2 0.uuid GPU-aa 0.total {24 * GB} 0.used {6 * GB} 1.uuid GPU-bb 1.total {8 * GB} 1.used {GB}"
    )

    @pytest.mark.parametrize("entry", [1, "GPU-bb", "GPU-b", "bb"])
    def test_are_found_by_index_and_by_uuid(self, machine, entry):
        assert machine.watch(self.SMALL_AND_LARGE, [entry], use=False).read() == {
            "gpu0/memory_used_gb": 1,
            "gpu0/memory_percent": 12.5,
        }

    def test_have_the_order_of_the_run(self, machine):
        found = machine.watch(self.SMALL_AND_LARGE, [1, 0], use=False).read()

        assert (found["gpu0/memory_used_gb"], found["gpu1/memory_used_gb"]) == (1, 6)

    def test_of_a_run_without_gpus_are_none(self, machine):
        assert machine.watch(TWO, []).read() == {}

    @pytest.mark.parametrize("entry", [0, "GPU-aa", "MIG-second"])
    def test_are_parts_of_a_divided_gpu(self, machine, entry):
        # Place 0 of the two is empty. A part has memory of its own, and no use that could be told.
        scenario = f"{ONE} 0.parts 2 0:1.uuid MIG-second 0:1.total {10 * GB} 0:1.used {4 * GB}"

        found = machine.watch(scenario, [entry]).read()

        assert found == {**nothing_of(0), "gpu0/memory_used_gb": 4, "gpu0/memory_percent": 40}
        assert len(machine.lines["complained"]) == 6


class TestAGpuThatIsLost:
    @pytest.mark.parametrize("code", [15, 16])
    def test_has_no_values_and_the_others_have_theirs(self, machine, code):
        machine.watch(TWO).read()

        assert machine.reads(20, f"{TWO} 1.error {code}") == [of(0) | nothing_of(1)] * 20

    def test_is_told_once_and_once_that_it_is_back(self, machine):
        machine.watch(TWO).read()
        machine.reads(20, f"{TWO} 1.error 15")
        found = machine.reads(20, TWO)

        assert found[-1] == of(0) | of(1)
        assert machine.lines == {
            "told": ["the NVIDIA driver answers again, for 2 GPUs."],
            "warned": ["GPU 1 does not answer (GPU is lost): there are no values of it as long as that lasts."],
            "complained": [],
        }

    def test_is_told_again_when_it_is_lost_again(self, machine):
        machine.watch(TWO).read()
        for _ in range(2):
            machine.reads(5, f"{TWO} 1.error 15")
            machine.reads(20, TWO)

        assert (len(machine.lines["warned"]), len(machine.lines["told"])) == (2, 2)

    def test_is_looked_for_less_and_less_often(self, machine):
        machine.watch(TWO).read()
        machine.reads(50, f"{TWO} 1.error 15")

        # Lost at reading 1 of 50; opened anew at 3, 6, 11, 20, 37: after 1, 2, 4, 8 and 16 readings in between.
        assert machine.opened_and_closed().count("open") == 1 + 5

    def test_cannot_be_asked_for_either(self, machine):
        machine.watch(TWO).read()
        machine.reads(1, f"{TWO} 0.error 15")

        assert machine.reads(4, f"{TWO} 0.handle.error 15")[-1] == nothing_of(0) | of(1)
        assert machine.reads(20, TWO)[-1] == of(0) | of(1)

    def test_does_not_concern_a_run_that_does_not_use_it(self, machine):
        machine.watch(f"{TWO} 0.handle.error 15", [1])

        assert machine.reads(5) == [of(0)] * 5
        assert (machine.opened_and_closed(), machine.lines["told"]) == (["open"], [])

    def test_does_not_move_the_others_to_its_place(self, machine):
        assert machine.watch(f"{TWO} 0.handle.error 15").read() == of(1)


class TestADriverThatIsGone:
    @pytest.mark.parametrize("trouble", ["all 1", "all 18", "generation 2", "init 9 all 9"])
    def test_leaves_no_values_and_no_error(self, machine, trouble):
        machine.watch(ONE).read()

        assert machine.read(f"{ONE} {trouble}") == nothing_of(0)
        assert len(machine.lines["warned"]) == 1

    @pytest.mark.parametrize("trouble", ["all 1", "all 18", "init 9 all 9"])
    def test_is_used_again_when_it_is_back(self, machine, trouble):
        machine.watch(ONE).read()
        machine.reads(10, f"{ONE} {trouble}")

        assert machine.reads(10, ONE)[-1] == of(0)
        assert machine.lines["told"] == ["the NVIDIA driver answers again, for 1 GPU."]

    def test_is_opened_anew_when_another_one_was_loaded(self, machine):
        machine.watch(ONE).read()

        assert machine.reads(3, f"{ONE} generation 2") == [nothing_of(0), nothing_of(0), of(0)]

    def test_from_the_start_is_one_line_of_information(self, machine):
        machine.watch("init 9")

        assert machine.reads(30) == [{}] * 30
        assert machine.lines == {
            "told": ["no NVIDIA driver answers (Driver Not Loaded): there are no values of it as long as that lasts."],
            "warned": [],
            "complained": [],
        }

    def test_from_the_start_is_used_when_it_comes(self, machine):
        machine.watch("init 9").reads(3)

        assert machine.reads(10, ONE)[-1] == of(0)


class TestAMissingLibrary:
    @pytest.mark.slow
    def test_is_one_line_of_information_and_used_when_it_comes(self, bare_machine, driver):
        bare_machine.watch(ONE)
        assert bare_machine.reads(5) == [{}] * 5
        assert bare_machine.lines["told"] == [
            "no NVIDIA driver answers (NVML Shared Library Not Found): there are no values of it as long as that lasts."
        ]

        shutil.copy(driver / "libnvidia-ml.so.1", bare_machine.library)

        assert bare_machine.reads(10)[-1] == of(0)


@pytest.mark.slow
class TestAWrongLibrary:
    """A file of the name of NVIDIA's that is something else."""

    def test_that_is_no_library_is_one_line_of_information(self, bare_machine):
        (bare_machine.library / "libnvidia-ml.so.1").write_text("moved to another place")

        assert bare_machine.watch(ONE).reads(5) == [{}] * 5
        assert bare_machine.lines["told"] == [
            "no NVIDIA driver answers (NVML Shared Library Not Found): there are no values of it as long as that lasts."
        ]

    def test_that_is_another_library_is_one_line_of_information(self, foreign_machine):
        assert foreign_machine.watch(ONE).reads(5) == [{}] * 5
        assert foreign_machine.lines["told"] == [
            "no NVIDIA driver answers (Function Not Found): there are no values of it as long as that lasts."
        ]


class TestTheLibrary:
    def test_is_closed_as_often_as_it_was_opened(self, machine):
        machine.watch(ONE).read()
        machine.reads(10, f"{ONE} all 1")
        machine.reads(10, ONE)
        machine.close()
        machine.close()

        assert machine.opened_and_closed() == ["open", "close"] * (len(machine.opened_and_closed()) // 2)

    def test_is_opened_again_after_it_was_closed(self, machine):
        machine.watch(ONE).read()
        machine.close()

        assert machine.read() == of(0)
