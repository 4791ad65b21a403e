"""From which checkpoint a run goes on, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hookbus import HookBus
from hookbus.errors import CheckpointError
from hookbus.run import Run
from hookbus.runs.workdir import read_status
from tests import toys

if TYPE_CHECKING:
    pass


class Elsewhere(toys.Saver):
    """Keeps its files in a directory of its own."""

    def __init__(self, path: Path) -> None:
        super().__init__("after_train_iter")
        self.path = path

    def directory(self, run: Run) -> Path:
        return self.path

    def plan(self, run: Run, requests: list[Any]) -> Path:
        return self.path / f"iter_{run.iters_done}.pth"


class TestResume:
    def test_auto_begins_at_zero_where_there_is_nothing(self, tmp_path: Path) -> None:
        run = toys.trainer(iterations=2, work_dir=tmp_path, resume="auto").fit()
        assert run.iters_done == 2

    def test_auto_goes_on_from_the_newest_and_says_so(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        toys.trainer(toys.Saver(), iterations=4, work_dir=tmp_path).fit()
        bus_events: list[Path] = []
        training = toys.trainer(toys.Saver(), iterations=5, work_dir=tmp_path, resume="auto")
        training.bus.on("after_load_checkpoint")(lambda path: bus_events.append(path))
        caplog.set_level("INFO", "hookbus")
        run = training.fit()
        newest = tmp_path / "checkpoints" / "iter_4.pth"
        assert (bus_events, run.iters_done) == ([newest], 5)
        assert f"Resumed from {newest}: epoch 1, iteration 4, step 4." in caplog.messages

    def test_auto_looks_where_the_saver_keeps_its_files(self, tmp_path: Path) -> None:
        (elsewhere := tmp_path / "elsewhere").mkdir()
        toys.trainer(Elsewhere(elsewhere), iterations=2, work_dir=tmp_path / "x").fit()
        begun: list[int] = []
        training = toys.trainer(Elsewhere(elsewhere), iterations=3, work_dir=tmp_path / "x", resume="auto")
        training.bus.on("before_train")(lambda run: begun.append(run.iters_done))
        training.fit()
        assert begun == [2]

    def test_auto_needs_no_work_dir_where_the_saver_has_a_place(self, tmp_path: Path) -> None:
        toys.trainer(Elsewhere(tmp_path), iterations=2).fit()
        begun: list[int] = []
        training = toys.trainer(Elsewhere(tmp_path), iterations=3, resume="auto")
        training.bus.on("before_train")(lambda run: begun.append(run.iters_done))
        training.fit()
        assert begun == [2]

    def test_auto_without_any_place_is_an_error(self) -> None:
        with pytest.raises(
            CheckpointError, match="resume: auto looks for checkpoints in the work directory: give work_dir"
        ):
            toys.trainer(toys.Saver(), epochs=1, resume="auto").fit()

    def test_auto_passes_over_a_damaged_file_and_says_so(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        saver = toys.Saver()
        toys.trainer(saver, iterations=2, work_dir=tmp_path).fit()
        with saver.files[1].open("r+b") as file:
            file.truncate(10)
        training = toys.trainer(toys.Saver(), iterations=2, work_dir=tmp_path, resume="auto")
        begun: list[int] = []
        training.bus.on("before_train")(lambda run: begun.append(run.iters_done))
        training.fit()
        assert begun == [1]
        assert [each for each in caplog.messages if each.startswith(f"resume: {saver.files[1]}: ")] != []

    def test_a_named_file_that_is_missing_ends_a_loop_of_ones_own_before_it_trains(self, tmp_path: Path) -> None:
        with (
            pytest.raises(CheckpointError, match="there is no such file"),
            HookBus().run(epochs=1, work_dir=tmp_path, resume=tmp_path / "nothing.pth"),
        ):
            pass
        assert (read_status(tmp_path)["outcome"], read_status(tmp_path)["iters_done"]) == ("failed", 0)

    def test_hooks_see_the_checkpoint_before_it_is_applied_and_may_change_it(self, tmp_path: Path) -> None:
        saver = toys.Saver("after_train_iter", 2)
        toys.trainer(saver, iterations=2, work_dir=tmp_path).fit()
        model = toys.net()
        training = toys.trainer(iterations=2, model=model, resume=saver.files[0])

        def change(run: Run, checkpoint: dict[str, Any]) -> None:
            assert run.iters_done == 0
            checkpoint["state_dict"]["0.weight"] = torch.full((8, 4), 3.0)

        training.bus.on("after_load_checkpoint")(change)
        training.fit()
        assert torch.equal(model.state_dict()["0.weight"], torch.full((8, 4), 3.0))

    def test_a_loop_of_ones_own_goes_on_as_well(self, tmp_path: Path) -> None:
        def train(iterations: int) -> list[tuple[int, int]]:
            bus, seen, model = HookBus([toys.Saver()]), [], toys.net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            options: dict[str, Any] = {"model": model, "optimizer": optimizer, "work_dir": tmp_path, "resume": "auto"}
            bus.on("after_train_iter")(lambda run, batch_idx: seen.append((run.iter, batch_idx)))
            with bus.run(iterations=iterations, **options) as run:
                for _ in toys.train_by_hand(bus, run, toys.pairs(), model, optimizer):
                    pass
            return seen

        assert train(2) == [(0, 0), (1, 1)]
        assert train(5) == [(2, 2), (3, 0), (4, 1)]
