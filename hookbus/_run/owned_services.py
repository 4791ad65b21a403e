"""Services with the hooks that have provided them."""

from __future__ import annotations

from typing import Any


class OwnedServices(dict[str, Any]):
    """Services by name. When a hook leaves, the services that it has replaced are restored."""

    def __init__(self) -> None:
        super().__init__()
        self._layers: dict[str, dict[str, Any]] = {}  # services by owner, by name of the service; the last one counts

    def provide(self, name: str, service: Any, owner: str) -> None:
        """Add a service of a hook, or of the loop with the owner "", whose services replace all earlier ones."""
        layers = self._layers.setdefault(name, {})
        if owner:
            layers.pop(owner, None)
        else:
            layers.clear()
        self[name] = layers[owner] = service

    def provide_all(self, services: OwnedServices) -> None:
        """Add the services of another object, with their owners."""
        for name, layers in services._layers.items():
            for owner, service in layers.items():
                self.provide(name, service, owner)

    def release(self, owner: str) -> None:
        """Remove the services of a hook."""
        for name, layers in list(self._layers.items()):
            if layers.pop(owner, self) is not self:
                if layers:
                    self[name] = next(reversed(layers.values()))
                else:
                    del self[name], self._layers[name]
