"""Points that this package declares."""

from __future__ import annotations

from torch import Tensor

from hookbus import hookspec

__all__ = ["RenderPoints"]


class RenderPoints:
    """Points that hooks of any package can listen at."""

    @hookspec(unit="epoch")
    def after_render(self, image: Tensor) -> None:
        """Called after an image is rendered and before it is logged; the image can be modified in place."""
