"""Points of a bus: those of `Lifecycle`, and those declared by packages and users."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, overload

from hookbus import _packages
from hookbus.dispatch.emitting import firing
from hookbus.dispatch.manager import Manager, spec_class
from hookbus.dispatch.table import Calls, Table
from hookbus.errors import PointError
from hookbus.points import ALIASES, Point, Unit, check_point, describe, point_of

__all__ = ["Points"]

P = ParamSpec("P")


class Points:
    """Base class of the bus that declares points."""

    pm: Manager
    actions: Mapping[str, tuple[str, ...]]
    table: Table
    calls: Calls
    _emit: Callable[..., None]

    @property
    def points(self) -> Mapping[str, Point]:
        """Points of the bus, by name."""
        return self.table.points

    @overload
    def declare(
        self, point: str, args: Sequence[str] = ..., *, unit: Unit | None = ..., doc: str = ...
    ) -> Callable[..., None]: ...
    @overload
    def declare(self, point: Callable[Concatenate[Any, P], None]) -> Callable[P, None]: ...
    def declare(
        self, point: str | Callable[..., None], args: Sequence[str] = (), *, unit: Unit | None = None, doc: str = ""
    ) -> Callable[..., None]:
        """Declare a custom point.

        Args:
            point: Name of the point, such as `before_...`, `after_...` or `on_...`; or a method of a spec class, which
                determines all other arguments and the types of the returned function.
            args: Names of the arguments in addition to `run`.
            unit: Default unit of `when=` at this point. None (default) disables schedules at the point.
            doc: Description of the point.

        Returns:
            Function that emits the point: `after_render(image=image)`.

        Raises:
            PointError: If a name is taken, reserved or not an identifier, or the unit is unknown. Declaring the same
                method again is valid.
        """
        if isinstance(args, str):  # also a sequence of names, of one letter each
            raise PointError(f"{point}: invalid `args`, got {args!r}. Pass args=({args!r},).")
        types = ("Any",) * len(args)
        new = Point(point, tuple(args), unit, doc, types) if isinstance(point, str) else point_of(point)
        existing = self.points.get(new.name)
        if existing is None:
            self._declare(new)
        # A spec method may be declared by multiple modules, before or after its package is discovered.
        elif isinstance(point, str) or existing != new:
            raise PointError(f"{new.name!r}: the point is already declared. Choose another name.")
        return firing(self._emit, new)

    def declare_from(self, spec: type) -> None:
        """Declare the points of a spec class like `Lifecycle`. Points that are already declared are skipped.

        Raises:
            PointError: If a name is reserved, a method takes `*args` or `**kwargs`, or a unit is unknown.
        """
        for name, point in describe(spec).items():
            if name not in self.points:
                self._declare(point)

    def find_points(self, names: Collection[str], module: str = "") -> bool:
        """Declare the points that installed packages publish under the given names, or in the package of `module`.

        Returns:
            Whether any point was declared.
        """
        before = len(self.points)
        for spec in _packages.point_specs(names, module):
            self.declare_from(spec)
        return len(self.points) > before

    def _declare(self, point: Point) -> None:
        check_point(point, {*ALIASES, *self.actions, *vars(Calls)})
        self._add({point.name: point})

    def _add(self, points: Mapping[str, Point]) -> None:
        self.pm.add_hookspecs(spec_class(points))
        self.table.points.update(points)
        self.calls.forget(points)
