"""The point that this package declares."""

from __future__ import annotations

from torch import Tensor

from hookbus import HookBus, hookspec

__all__ = ["RenderPoints", "fire_after_render"]


class RenderPoints:
    """Points that hooks of any package can listen at."""

    @hookspec(unit="epoch")
    def after_render(self, image: Tensor | None = None) -> None:
        """A picture was rendered and is about to be recorded; it may be changed in place."""


def fire_after_render(bus: HookBus, image: Tensor) -> None:
    """Fire the point; the bus finds it through the entry point."""
    bus.emit("after_render", image=image)  # type: ignore[call-overload] # emit is typed for the points of hookbus itself
