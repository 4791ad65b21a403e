from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus_sync.sizes import Sizes

counts = st.integers(1, 40)


@given(st.integers(0, 2**63 - 1), counts, counts, counts, st.integers(0, 10**9))
def test_size_is_a_multiple_of_32_in_the_range_for_a_whole_interval(
    seed: int, first: int, second: int, interval: int, period: int
) -> None:
    least, greatest = sorted((first, second))
    sizes = Sizes(seed, (least, greatest), (640, 640), interval)
    distinct = {sizes.size_for_iteration(period * interval + i) for i in (0, interval // 2, interval - 1)}

    ((height, width),) = distinct
    assert height == width
    assert height % 32 == 0
    assert least <= height // 32 <= greatest


def test_all_sizes_of_the_range_occur() -> None:
    sizes = Sizes(3, (14, 16), interval=1)

    assert {sizes.size_for_iteration(i) for i in range(100)} == {(448, 448), (480, 480), (512, 512)}


def test_aspect_ratio_is_rounded_to_multiples_of_32() -> None:
    # 15 * 800 / 480 = 25
    assert Sizes(0, (15, 15), (480, 800)).size_for_iteration(0) == (480, 800)
    # 3 * 100 / 640 is less than 1
    assert Sizes(0, (3, 3), (640, 100)).size_for_iteration(0) == (96, 32)


@pytest.mark.slow
def test_sizes_depend_on_the_seed_and_not_on_the_process() -> None:
    first = [Sizes(1, interval=2).size_for_iteration(i) for i in range(20)]
    script = (
        "from hookbus_sync.sizes import Sizes as S\nprint([S(1, interval=2).size_for_iteration(i) for i in range(20)])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert done.stdout.strip() == repr(first)
    assert first != [Sizes(2, interval=2).size_for_iteration(i) for i in range(20)]
