from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def golden(tmp_path: Path) -> Callable[[str, NDArray[np.uint8]], None]:
    """Return a function that compares an image with a reviewed golden image.

    Text rendering differs slightly between versions of FreeType: 0.5% of the pixels may differ arbitrarily, and all
    others by at most 8 of 255.
    """

    def compare(name: str, image: NDArray[np.uint8]) -> None:
        actual_path, golden_path = tmp_path / f"{name}.png", GOLDEN / f"{name}.png"
        Image.fromarray(image).save(actual_path)
        assert golden_path.is_file(), f"Golden image not found. Review {actual_path} and save it as {golden_path}."
        expected = np.asarray(Image.open(golden_path))
        assert image.shape == expected.shape
        mismatch = (np.abs(image.astype(int) - expected) > 8).any(axis=2).mean()
        assert mismatch <= 0.005, f"{mismatch:.1%} of the pixels differ. Compare {actual_path} with {golden_path}."

    return compare
