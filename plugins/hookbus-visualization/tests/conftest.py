from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def golden(tmp_path: Path) -> Callable[[str, NDArray[np.uint8]], None]:
    """Compare a picture with the one of a name that somebody has looked at.

    Letters may be a little different with another version of the library that draws them: one pixel of two hundred may
    be another one, and all others by 8 of 255.
    """

    def compare(name: str, picture: NDArray[np.uint8]) -> None:
        found, kept = tmp_path / f"{name}.png", GOLDEN / f"{name}.png"
        Image.fromarray(picture).save(found)
        assert kept.is_file(), f"Look at {found}. If it is right, keep it as {kept}."
        wanted = np.asarray(Image.open(kept))
        assert picture.shape == wanted.shape
        others = (np.abs(picture.astype(int) - wanted) > 8).any(axis=2).mean()
        assert others <= 0.005, f"{others:.1%} of the pixels are others: compare {found} with {kept}."

    return compare
