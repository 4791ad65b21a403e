"""Image sizes as a function of seed and iteration."""

from __future__ import annotations

from dataclasses import dataclass

from hookbus.data import derive_seed

SIZE_DIVISOR = 32
"""Divisor of all sizes, in pixels: the largest stride of common detectors."""


@dataclass(frozen=True)
class Sizes:
    """Image sizes of a training.

    Attributes:
        seed: Seed of the random factors.
        ratio_range: Smallest and largest factor k, both included.
        img_scale: Height and width that define the aspect ratio.
        interval: Number of iterations per size.
    """

    seed: int
    ratio_range: tuple[int, int] = (14, 26)
    img_scale: tuple[int, int] = (640, 640)
    interval: int = 10

    def size_for_iteration(self, iteration: int) -> tuple[int, int]:
        """Return (height, width) in pixels for an iteration: (32 k, 32 floor(k * width / height)).

        Args:
            iteration: Index of the iteration, from 0.
        """
        least, greatest = self.ratio_range
        # Derived instead of drawn from an RNG: ranks and workers compute the same size without communication.
        k = least + derive_seed(self.seed, iteration // self.interval, SIZE_DIVISOR) % (greatest - least + 1)
        height, width = self.img_scale
        return SIZE_DIVISOR * k, SIZE_DIVISOR * max(k * width // height, 1)
