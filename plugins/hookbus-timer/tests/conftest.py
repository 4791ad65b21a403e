import pytest


class FakeClock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock():
    """A clock that does not start at zero, as no real one does."""
    made = FakeClock()
    made.pass_(1000)
    return made
