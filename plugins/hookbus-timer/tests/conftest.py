import pytest


class FakeClock:
    """A clock that only `advance` moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock():
    """Return a clock that starts at 1000 s: a real clock does not start at zero either."""
    clock = FakeClock()
    clock.advance(1000)
    return clock
