from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookbus.data.rng import derive_seed, get_rng_state, isolate_rng, seed_everything, set_rng_state
from hookbus.testing import fingerprint


def draw() -> tuple[float, ...]:
    """Draw from each RNG, including the normal distributions of Python and NumPy, which cache a second value."""
    return (
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
        float(torch.rand(())),
    )


@pytest.fixture(autouse=True)
def _restore_rng() -> Any:
    with isolate_rng():
        yield


def test_state_restores_every_rng() -> None:
    draw()
    state = get_rng_state()
    first = draw()

    assert draw() != first
    set_rng_state(state)
    assert draw() == first


def test_state_contains_the_rng_of_an_apple_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.Generator()
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "get_rng_state", gpu.get_state)
    monkeypatch.setattr(torch.mps, "set_rng_state", gpu.set_state)
    state, first = get_rng_state(), torch.rand((), generator=gpu)
    set_rng_state(state)

    assert torch.rand((), generator=gpu) == first
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    set_rng_state(state)  # on a machine without such a GPU
    assert "mps" not in get_rng_state()


def test_state_can_be_saved_and_loaded_with_weights_only() -> None:
    draw()
    state, first = get_rng_state(), draw()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    set_rng_state(torch.load(file, weights_only=True))

    assert draw() == first


def test_state_is_a_copy() -> None:
    state = get_rng_state()
    before = fingerprint(state)
    draw()

    assert fingerprint(state) == before


@pytest.mark.parametrize("fails", [False, True])
def test_isolate_rng_restores_all_states(fails: bool) -> None:
    before = fingerprint(get_rng_state())

    def draw_isolated() -> None:
        with isolate_rng():
            draw()
            seed_everything(3)
            if fails:
                raise ValueError("planted")

    if fails:
        with pytest.raises(ValueError, match="planted"):
            draw_isolated()
    else:
        draw_isolated()
    assert fingerprint(get_rng_state()) == before


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 5])
def test_seed_determines_the_sequence_of_every_rng(seed: int) -> None:
    seed_everything(seed)
    first = draw()
    seed_everything(seed)

    assert draw() == first
    seed_everything(seed + 1)
    assert not set(draw()) & set(first)


@pytest.mark.parametrize(
    "advance", [random.random, lambda: np.random.rand(), lambda: torch.rand(()), lambda: np.random.randn()]
)
def test_state_without_numpy_restores_the_other_rngs(advance: Callable[[], Any]) -> None:
    state = get_rng_state()
    without = {name: value for name, value in state.items() if name != "numpy"}
    numpy_before = fingerprint(get_rng_state()["numpy"])
    advance()
    numpy_now = fingerprint(get_rng_state()["numpy"])
    set_rng_state(without)
    now = get_rng_state()

    assert fingerprint({**now, "numpy": 0}) == fingerprint({**state, "numpy": 0})
    assert fingerprint(now["numpy"]) == numpy_now
    assert (numpy_now == numpy_before) == (advance is random.random or "torch" in advance.__code__.co_names)


class TestMix:
    @pytest.mark.parametrize(
        ("seed", "outputs"),
        [
            # First outputs of the reference implementation for the seeds 0 and 1234567.
            (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]),
            (1234567, [6457827717110365317, 3203168211198807973, 9817491932198370423]),
        ],
    )
    def test_derived_seeds_are_outputs_of_splitmix64(self, seed: int, outputs: list[int]) -> None:
        golden = 0x9E3779B97F4A7C15

        assert [derive_seed(seed + i * golden) for i in range(3)] == [output >> 1 for output in outputs]

    @given(st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=4))
    def test_derived_seed_fits_every_generator(self, numbers: list[int]) -> None:
        assert 0 <= derive_seed(*numbers) < 2**63

    def test_derived_seeds_of_different_positions_differ(self) -> None:
        seeds = {derive_seed(seed, epoch, index) for seed in range(20) for epoch in range(20) for index in range(20)}

        assert len(seeds) == 20**3
        assert len({derive_seed(1, 2), derive_seed(2, 1), derive_seed(3), derive_seed(1, 2, 0)}) == 4
