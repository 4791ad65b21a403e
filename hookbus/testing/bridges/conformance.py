"""List of the checks of a bridge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, overload

from hookbus.data.rng import isolate_rng
from hookbus.testing.bridges import failures, points, record, refused_saves, requests, results
from hookbus.testing.bridges.trainings import Kit
from hookbus.testing.hosts import HostAdapter

CHECKS: dict[str, Callable[[Kit, Path], None]] = {
    "record": record.check_record,
    "discovery": record.check_discovery,
    "order": points.check_order,
    "order_with_accumulation": points.check_order_with_accumulation,
    "counts": points.check_counts,
    "batches": points.check_batches,
    "losses": points.check_losses,
    "gradients": points.check_gradients,
    "averaged_weights": points.check_averaged_weights,
    "parity": results.check_parity,
    "records": results.check_records,
    "stop": requests.check_stop,
    "stop_epoch": requests.check_stop_epoch,
    "save": requests.check_save,
    "refused_save": refused_saves.check_refused_save,
    "validation": requests.check_validation,
    "skip": requests.check_skip,
    "failure": failures.check_failure,
    "second_training": failures.check_second_training,
    **{f"invalid_loss_{name}": partial(failures.check_invalid_loss, policy=name) for name in ("raise", "skip", "stop")},
}


class BridgeCheck:
    """One check of a bridge. Its string is its name.

    Args:
        name: Name of the check.
        kit: Trainings with the adapter.
        function: The check.
    """

    def __init__(self, name: str, kit: Kit, function: Callable[[Kit, Path], None]) -> None:
        self.name, self._kit, self._function = name, kit, function

    def __str__(self) -> str:
        return self.name

    def __call__(self, directory: Path) -> None:
        """Perform the check.

        Args:
            directory: Empty directory for the files of its trainings.

        Raises:
            AssertionError: If the bridge does not pass. The message states what differs.
        """
        with isolate_rng():
            self._function(self._kit, directory)


class BridgeChecks(Sequence[BridgeCheck]):
    """Checks of a bridge: a sequence for a parametrized test, and a function that performs all of them."""

    def __init__(self, checks: Sequence[BridgeCheck]) -> None:
        self._checks = tuple(checks)

    @overload
    def __getitem__(self, index: int) -> BridgeCheck: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[BridgeCheck]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._checks[index]

    def __len__(self) -> int:
        return len(self._checks)

    def __call__(self, directory: Path) -> None:
        """Perform all checks.

        Args:
            directory: Empty directory for the files of the trainings.

        Raises:
            AssertionError: If the bridge does not pass a check.
        """
        for check in self._checks:
            check(directory / check.name)


def bridge_conformance(adapter: HostAdapter) -> BridgeChecks:
    """Return the checks that a bridge must pass, each of which trains a small task in the trainer.

    ```python
    @pytest.mark.parametrize("check", bridge_conformance(Adapter()), ids=str)
    def test_bridge(check, tmp_path):
        check(tmp_path)
    ```

    `bridge_conformance(adapter)(directory)` performs all of them. The same hooks are trained in the Trainer of hookbus,
    and compared:

    * `record`, `discovery`: the record agrees with what is emitted, and an installed package publishes it.
    * `order`, `order_with_accumulation`, `counts`: each point is emitted once and in order, and counts are the same.
    * `batches`, `losses`, `gradients`, `averaged_weights`: what the points provide.
    * `parity`, `records`: weights, averages and JSON lines are bitwise equal.
    * `stop`, `stop_epoch`, `save`, `validation`, `skip`: a request takes effect when the record says, or is refused.
    * `invalid_loss_...`: the policies of the hook `check_invalid_loss`.
    * `failure`, `second_training`: what a training leaves behind.
    * `resume_...`, `resume_after_failure_...`: for each owner of the checkpoints, a training that resumes equals the
      uninterrupted one.

    Args:
        adapter: Trains a task in the trainer.
    """
    kit = Kit(adapter)
    return BridgeChecks([BridgeCheck(name, kit, function) for name, function in _iter_functions(adapter)])


def _iter_functions(adapter: HostAdapter) -> Iterator[tuple[str, Callable[[Kit, Path], None]]]:
    yield from CHECKS.items()
    for owner in adapter.capabilities.checkpoints:
        yield f"resume_{owner}", partial(results.check_resume, checkpoints=owner)
        yield f"resume_after_failure_{owner}", partial(results.check_resume_after_failure, checkpoints=owner)
