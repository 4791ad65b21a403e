from hookbus_system_monitor.memory import Memory, format_memory_fields, format_memory_sentence

MB = 2**20
MEMORY = Memory(total=255767 * MB, available=246360 * MB, used=9407 * MB, percent=3.7)
SWAP = Memory(total=8192 * MB, available=5740 * MB, used=2452 * MB, percent=29.9)


def test_memory_sentence_contains_all_sizes():
    assert format_memory_sentence(MEMORY, SWAP, 5434 * MB) == (
        "The system has 250 GB (246360 MB + 9407 MB) of memory and 8 GB (5740 MB + 2452 MB) of swap memory in total. "
        "Currently 9407 MB (3.7%) of memory and 2452 MB (29.9%) of swap memory were consumed. And the current training "
        "process consumed 5434 MB of memory."
    )


def test_memory_fields_contain_all_sizes():
    assert format_memory_fields(MEMORY, SWAP, 5434 * MB) == (
        "Memory information available_memory: 246360 MB, used_memory: 9407 MB, memory_utilization: 3.7 %, "
        "available_swap_memory: 5740 MB, used_swap_memory: 2452 MB, swap_memory_utilization: 29.9 %, "
        "current_process_memory: 5434 MB"
    )


def test_memory_sentence_reports_a_system_without_swap():
    assert "0 GB (0 MB + 0 MB) of swap memory in total" in format_memory_sentence(MEMORY, Memory(0, 0, 0, 0.0), MB)


def test_sizes_are_rounded_to_the_nearest_megabyte():
    assert format_memory_fields(MEMORY, SWAP, round(1.6 * MB)).endswith("current_process_memory: 2 MB")
