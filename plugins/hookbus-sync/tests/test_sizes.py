from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from hookbus_sync.sizes import Sizes

counts = st.integers(1, 40)


@given(st.integers(0, 2**63 - 1), counts, counts, counts, st.integers(0, 10**9))
def test_a_size_is_a_multiple_of_32_within_the_range_and_stays_for_the_interval(
    seed: int, one: int, other: int, interval: int, period: int
) -> None:
    least, greatest = sorted((one, other))
    sizes = Sizes(seed, (least, greatest), (640, 640), interval)
    found = {sizes.at(period * interval + i) for i in (0, interval // 2, interval - 1)}

    ((height, width),) = found
    assert height == width
    assert height % 32 == 0
    assert least <= height // 32 <= greatest


def test_every_size_of_the_range_comes() -> None:
    sizes = Sizes(3, (14, 16), interval=1)

    assert {sizes.at(i) for i in range(100)} == {(448, 448), (480, 480), (512, 512)}


def test_the_proportion_is_kept_in_whole_units() -> None:
    # 15 * 800 / 480 = 25
    assert Sizes(0, (15, 15), (480, 800)).at(0) == (480, 800)
    # 3 * 100 / 640 is less than one unit
    assert Sizes(0, (3, 3), (640, 100)).at(0) == (96, 32)


def test_other_seeds_have_other_sizes_and_every_process_the_same() -> None:
    first = [Sizes(1, interval=2).at(i) for i in range(20)]
    script = "from hookbus_sync.sizes import Sizes; print([Sizes(1, interval=2).at(i) for i in range(20)])"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert done.stdout.strip() == repr(first)
    assert first != [Sizes(2, interval=2).at(i) for i in range(20)]
