"""Files that a hook will write, as `hookbus plan` shows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that a hook writes in a run, or several files whose names differ by numbers or metrics.

    Attributes:
        path: Path; a relative one is below the work directory. Fields in braces stand for numbers and metrics.
        point: Point at whose due calls of the hook a file is written. Default: "", for a single file.
        when: Condition under which a file is written in addition to the schedule of the point. Default: "".
        size: Size of each file in bytes. Default: None, if it depends on the run; 0 for a hard link.
        keep: Maximum number of files that are kept. Default: None, for all.
        appended: Whether one file is extended at each call. Default: False, for one file per call.
    """

    path: str
    point: str = ""
    when: str = ""
    size: int | None = None
    keep: int | None = None
    appended: bool = False
