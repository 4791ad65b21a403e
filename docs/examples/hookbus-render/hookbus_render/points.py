"""The point that this package declares."""

from __future__ import annotations

from torch import Tensor

from hookbus import hookspec

__all__ = ["RenderPoints"]


class RenderPoints:
    """Points that hooks of any package can listen at."""

    @hookspec(unit="epoch")
    def after_render(self, image: Tensor) -> None:
        """A picture was rendered and is about to be recorded; it may be changed in place."""
