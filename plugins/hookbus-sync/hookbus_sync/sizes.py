"""Image sizes as a function of seed and iteration, so that every process has the same without asking another."""

from __future__ import annotations

from dataclasses import dataclass

from hookbus.training.rng import mix

__all__ = ["Sizes"]

UNIT = 32
"""Sizes are multiples of this many pixels, the stride of the usual detectors."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a training.

    Attributes:
        seed: what they follow from, together with the iteration.
        ratio_range: the least and the greatest k.
        img_scale: height and width of the plain size, for their proportion.
        interval: a new size every this many iterations.
    """

    seed: int
    ratio_range: tuple[int, int] = (14, 26)
    img_scale: tuple[int, int] = (640, 640)
    interval: int = 10

    def at(self, iteration: int) -> tuple[int, int]:
        """(height, width) in pixels of an iteration, by its index from 0: (32 k, 32 floor(k * width / height))."""
        least, greatest = self.ratio_range
        k = least + mix(self.seed, iteration // self.interval, UNIT) % (greatest - least + 1)
        height, width = self.img_scale
        return UNIT * k, UNIT * max(k * width // height, 1)
