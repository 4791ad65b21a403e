"""The points of a bus: those of every run, and those that packages and users declare."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, overload

from hookbus import _packages
from hookbus.dispatch.actions import ACTIONS
from hookbus.dispatch.emitting import firing
from hookbus.dispatch.manager import Manager, spec_class
from hookbus.dispatch.table import Calls, Table
from hookbus.errors import PointError
from hookbus.lifecycle import ALIASES, Point, Unit, check_point, describe, point_of

__all__ = ["Points"]

P = ParamSpec("P")


class Points:
    """The part of a bus that knows its points."""

    pm: Manager
    table: Table
    calls: Calls
    _emit: Callable[..., None]

    @property
    def points(self) -> Mapping[str, Point]:
        """Every point that can be fired here, by name."""
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
        """Declare a point of one's own.

        Args:
            point: `before_...`, `after_...`, `on_...` or another identifier; or a method of a spec class, which says
                all of this by itself, and gives its types to the function that fires the point.
            args: its arguments besides `run`.
            unit: what `when=` counts there; None where nothing is counted.
            doc: what it means.

        Returns:
            A function that fires it: `after_render(image=picture)`.

        Raises:
            PointError: a name is taken, reserved or no identifier, or there is no such unit. A method may say again
                what is declared already.
        """
        if isinstance(args, str):
            raise PointError(f"{point}: args is a list of names, not {args!r}: say args=({args!r},).")
        types = ("Any",) * len(args)
        wanted = Point(point, tuple(args), unit, doc, types) if isinstance(point, str) else point_of(point)
        there = self.points.get(wanted.name)
        if there is None:
            self._declare(wanted)
        elif isinstance(point, str) or there != wanted:
            raise PointError(f"The point {wanted.name!r} is declared already.")
        return firing(self._emit, wanted)

    def declare_from(self, spec: type) -> None:
        """Declare the points of a spec class like `Lifecycle`, one method each; those that are there stay.

        Raises:
            PointError: a name is reserved, a method takes `*args` or `**kwargs`, or there is no such unit.
        """
        for name, point in describe(spec).items():
            if name not in self.points:
                self._declare(point)

    def find_points(self, names: Collection[str], module: str = "") -> bool:
        """Declare what packages offer under these names, or in `module`'s own package. Returns whether any is."""
        before = len(self.points)
        for spec in _packages.point_specs(names, module):
            self.declare_from(spec)
        return len(self.points) > before

    def _declare(self, point: Point) -> None:
        check_point(point, {*ALIASES, *ACTIONS, *vars(Calls)})
        self._add({point.name: point})

    def _add(self, points: Mapping[str, Point]) -> None:
        self.pm.add_hookspecs(spec_class(points))
        self.table.points.update(points)
        self.calls.forget(points)
