"""Files that the predictions hook writes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Hook, HookBus, Trainer
from hookbus.checkpoint import commit_file
from hookbus.errors import ConfigError, LoopError
from hookbus.testing import check_hook
from hookbus_predictions import PredictionsHook
from hookbus_predictions import hook as hook_module

INPUTS = torch.arange(5.0)[:, None]
PREDICTIONS = [[1.0], [3.0], [5.0], [7.0], [9.0]]
"""2 x + 1 of the inputs 0, 1, 2, 3, 4."""


def line() -> nn.Linear:
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(2.0), model.bias.fill_(1.0)
    return model


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(INPUTS), 2, **options)


def predict(directory: Path | None, *hooks: Hook, data: Any = None, model: nn.Module | None = None) -> Any:
    trainer = Trainer(model or line(), hooks=hooks, default_hooks=False, work_dir=directory, device="cpu")
    return trainer.predict(loader() if data is None else data, return_predictions=False)


class Fail(Hook):
    """Hook that raises an exception in the second batch."""

    def after_predict_iter(self, batch_idx: int) -> None:
        if batch_idx == 1:
            raise ValueError("no")


def list_files(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("[!.]*") if path.is_file())


def load(path: Path) -> tuple[list[int], list[Any]]:
    content = torch.load(path, weights_only=True)
    return content["index"].tolist(), content["output"].tolist()


@pytest.mark.slow
def test_hook_meets_the_requirements() -> None:
    check_hook(PredictionsHook)


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"sampler": [3, 0, 4, 1, 2]}], ids=str)
def test_samples_are_in_the_order_of_the_data(tmp_path: Path, options: dict[str, Any]) -> None:
    predict(tmp_path, PredictionsHook(), data=loader(**options))
    assert list_files(tmp_path) == ["predictions.pt"]
    assert load(tmp_path / "predictions.pt") == ([0, 1, 2, 3, 4], PREDICTIONS)


def test_each_batch_has_a_file(tmp_path: Path) -> None:
    predict(tmp_path, PredictionsHook(interval="batch"), data=loader(sampler=[4, 0, 2]))
    assert list_files(tmp_path) == ["predictions-batches/000000.pt", "predictions-batches/000001.pt"]
    assert load(tmp_path / "predictions-batches/000000.pt") == ([4, 0], [[9.0], [1.0]])
    assert load(tmp_path / "predictions-batches/000001.pt") == ([2], [[5.0]])


def test_batches_and_the_whole_may_both_be_written(tmp_path: Path) -> None:
    predict(tmp_path, PredictionsHook(interval="batch_and_epoch", file="p.jsonl"))
    assert list_files(tmp_path) == [*(f"p-batches/00000{number}.jsonl" for number in range(3)), "p.jsonl"]
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert rows == [{"index": index, "output": output} for index, output in enumerate(PREDICTIONS)]


def test_loaders_have_files_of_their_own(tmp_path: Path) -> None:
    predict(tmp_path, PredictionsHook(), data={"a": [INPUTS[:1]], "b/c": [INPUTS[1:2]]})
    names = list_files(tmp_path)
    assert len(names) == 2
    assert [load(tmp_path / name) for name in names] == [([0], [[1.0]]), ([0], [[3.0]])]


def test_two_instances_write_two_files(tmp_path: Path) -> None:
    def build_hooks() -> list[Hook]:
        both = PredictionsHook(name="two", file="predictions.csv", interval="batch_and_epoch")
        return [PredictionsHook(name="one"), both]

    predict(tmp_path / "a", *build_hooks())
    predict(tmp_path / "b", *reversed(build_hooks()))
    files = [*(f"predictions-batches/00000{number}.csv" for number in range(3)), "predictions.csv", "predictions.pt"]
    assert list_files(tmp_path / "a") == list_files(tmp_path / "b") == files


def test_two_instances_with_one_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Set another `file` for one of them"):
        predict(tmp_path, PredictionsHook(name="one"), PredictionsHook(name="two"))


class TestExistingFiles:
    @pytest.mark.parametrize("settings", [{}, {"interval": "batch"}])
    def test_earlier_predictions_are_an_error_before_the_run(self, tmp_path: Path, settings: dict[str, Any]) -> None:
        predict(tmp_path, PredictionsHook(**settings))
        before = {name: (tmp_path / name).read_bytes() for name in list_files(tmp_path)}
        with pytest.raises(ConfigError, match=r"file: the predictions exist, got .*predictions.*Set `overwrite: true`"):
            predict(tmp_path, PredictionsHook(**settings))
        assert {name: (tmp_path / name).read_bytes() for name in list_files(tmp_path)} == before

    def test_earlier_predictions_are_removed_on_request(self, tmp_path: Path) -> None:
        (tmp_path / "predictions.txt").write_text("mine")
        predict(tmp_path, PredictionsHook(interval="batch_and_epoch"))
        predict(tmp_path, PredictionsHook(interval="batch_and_epoch", overwrite=True), data=[INPUTS[4:]])
        assert list_files(tmp_path) == ["predictions-batches/000000.pt", "predictions.pt", "predictions.txt"]
        assert load(tmp_path / "predictions.pt") == ([0], [[9.0]])

    def test_failed_prediction_keeps_the_earlier_ones(self, tmp_path: Path) -> None:
        settings = {"interval": "batch_and_epoch", "file": "p.jsonl"}
        predict(tmp_path, PredictionsHook(**settings))
        before = {name: (tmp_path / name).read_bytes() for name in list_files(tmp_path)}
        assert len(before) == 4
        with pytest.raises(ValueError, match="no"):
            predict(tmp_path, PredictionsHook(**settings, overwrite=True), Fail(), data=[INPUTS[4:], INPUTS])
        assert {name: (tmp_path / name).read_bytes() for name in list_files(tmp_path)} == before
        assert not list(tmp_path.glob(".tmp*"))

    def test_files_of_earlier_loaders_are_removed_at_the_end(self, tmp_path: Path) -> None:
        predict(tmp_path, PredictionsHook(interval="batch"), data={"a": [INPUTS], "b": [INPUTS]})
        (tmp_path / "predictions-b-batches/notes.txt").write_text("mine")
        with pytest.raises(ValueError, match="no"):  # in the second loader, after the first one was replaced
            predict(
                tmp_path,
                PredictionsHook(overwrite=True),
                Fail(),
                data={"a": [INPUTS[4:]], "c": [INPUTS, INPUTS]},
            )
        batches = ["predictions-a-batches/000000.pt", "predictions-b-batches/000000.pt"]
        notes = "predictions-b-batches/notes.txt"
        assert list_files(tmp_path) == [batches[0], "predictions-a.pt", batches[1], notes]
        predict(tmp_path, PredictionsHook(overwrite=True))
        assert list_files(tmp_path) == [notes, "predictions.pt"]
        assert not (tmp_path / "predictions-a-batches").exists()

    @pytest.mark.parametrize("is_in_work_dir", [True, False])
    def test_files_of_users_with_similar_names_are_kept(self, tmp_path: Path, is_in_work_dir: bool) -> None:
        directory = tmp_path / "work" if is_in_work_dir else tmp_path / "other"
        users = ["p-old.csv", "p-rank0-old.csv", "p-a-old.csv", "p-batches/notes.csv", "p-old-batches/000000.csv"]
        for name in users:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text("mine")

        def build_hook(**settings: Any) -> PredictionsHook:
            return PredictionsHook(file=str(directory / "p.csv"), interval="batch_and_epoch", merge=False, **settings)

        predict(tmp_path / "work", build_hook(), data={"a": [INPUTS, INPUTS]})
        with pytest.raises(ConfigError, match="the predictions exist, got .*p-a-"):
            predict(tmp_path / "work", build_hook(), data={"a": [INPUTS]})
        predict(tmp_path / "work", build_hook(overwrite=True), data={"a": [INPUTS]})
        own = ["p-a-batches/000000.csv", "p-a-rank0.csv"]
        assert [name for name in list_files(directory) if name != "status.json"] == sorted([*own, *users])
        assert {(directory / name).read_text() for name in users} == {"mine"}

    def test_loop_that_names_its_loaders_late_replaces_no_file(self, tmp_path: Path) -> None:
        (tmp_path / "predictions-late.pt").write_text("mine")
        with (
            HookBus([PredictionsHook()]).run(model=line(), mode="predict", work_dir=tmp_path) as run,
            pytest.raises(ConfigError, match=r"the predictions exist, got .*predictions-late\.pt"),
        ):
            run.bus.emit("before_predict_epoch", dataloader_name="late")
        assert (tmp_path / "predictions-late.pt").read_text() == "mine"

    def test_files_of_another_instance_with_a_longer_name_are_kept(self, tmp_path: Path) -> None:
        def build_hooks() -> list[Hook]:
            longer = PredictionsHook(name="longer", file="p-b.pt", overwrite=True, merge=False)
            return [PredictionsHook(name="short", file="p.pt", overwrite=True), longer]

        predict(tmp_path, *build_hooks())
        predict(tmp_path, *reversed(build_hooks()), data=[INPUTS[4:]])
        assert list_files(tmp_path) == ["p-b-rank0.pt", "p.pt"]
        assert load(tmp_path / "p-b-rank0.pt") == load(tmp_path / "p.pt") == ([0], [[9.0]])

    def test_failed_prediction_leaves_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no"):
            predict(tmp_path, PredictionsHook(), Fail())
        assert list_files(tmp_path) == []
        assert not list(tmp_path.glob(".tmp*"))

    @pytest.mark.parametrize("file", [f"p{suffix}" for suffix in (".pt", ".npz", ".csv", ".jsonl", ".parquet")])
    def test_file_is_complete_when_it_gets_its_name(
        self, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if file.endswith(".parquet"):
            pytest.importorskip("pyarrow")
        committed: dict[str, bytes] = {}

        def commit(temporary: Path, path: Path) -> None:
            committed[path.name] = temporary.read_bytes()
            assert not path.exists()
            commit_file(temporary, path)

        monkeypatch.setattr(hook_module, "commit_file", commit)
        predict(tmp_path, PredictionsHook(file=file))
        assert committed == {file: (tmp_path / file).read_bytes()}


class TestErrors:
    def test_relative_file_requires_a_work_directory(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="file"):
            predict(None, PredictionsHook())
        predict(None, PredictionsHook(file=str(tmp_path / "absolute.pt")))
        assert list_files(tmp_path) == ["absolute.pt"]

    def test_outputs_without_samples_are_an_error(self, tmp_path: Path) -> None:
        class Mean(nn.Module):
            def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
                return {"mean": x.mean()}

        with pytest.raises(LoopError, match="outputs: expected a value for each of the 2 samples of a batch, got mean"):
            predict(tmp_path, PredictionsHook(), model=Mean())

    def test_values_of_the_batch_are_reported_once(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        class WithMean(nn.Module):
            def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
                return {"output": x, "mean": x.mean()}

        with caplog.at_level(logging.WARNING):
            predict(tmp_path, PredictionsHook(), model=WithMean())
        assert [record.getMessage() for record in caplog.records] == [
            "An output without a value for each sample is not written: mean: tensor of shape ()."
        ]

    def test_format_that_cannot_contain_the_samples_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(LoopError, match=r"file: p\.csv cannot be written: the samples differ in shape"):
            predict(
                tmp_path, PredictionsHook(file="p.csv"), data=[torch.ones(1, 1), torch.ones(1, 2)], model=nn.Identity()
            )
        assert list_files(tmp_path) == []

    @pytest.mark.parametrize("names", [("index",), ("a.b", "a")])
    def test_outputs_that_would_share_a_column_are_an_error(self, tmp_path: Path, names: tuple[str, ...]) -> None:
        class Named(nn.Module):
            def forward(self, x: torch.Tensor) -> dict[str, Any]:
                return dict(zip(names, (x, {"b": x}), strict=False))

        with pytest.raises(LoopError, match=r"outputs: .*Rename"):
            predict(tmp_path, PredictionsHook(), model=Named())
        assert list_files(tmp_path) == []

    def test_outputs_of_some_batches_only_are_an_error(self, tmp_path: Path) -> None:
        class Sometimes(nn.Module):
            def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
                return {"y": x, "z": x} if float(x[0]) else {"y": x}

        with pytest.raises(LoopError, match="expected the same outputs for every batch, got z for some of them only"):
            predict(tmp_path, PredictionsHook(file="p.jsonl"), model=Sometimes())
        assert list_files(tmp_path) == []


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_batch_without_samples_has_no_rows(tmp_path: Path, suffix: str) -> None:
    for name, data in {"a": [INPUTS, INPUTS[:0], INPUTS], "b": [INPUTS, INPUTS]}.items():
        predict(tmp_path / name, PredictionsHook(file=f"p{suffix}"), data=data)
    assert (tmp_path / f"a/p{suffix}").read_bytes() == (tmp_path / f"b/p{suffix}").read_bytes()


def test_custom_loop_writes_the_same_file(tmp_path: Path) -> None:
    model = line()
    with HookBus([PredictionsHook()]).run(model=model, mode="predict", work_dir=tmp_path) as run:
        run.bus.emit("before_predict_epoch")
        for i, (batch,) in enumerate(loader()):
            run.bus.emit("after_predict_iter", batch_idx=i, batch=batch, outputs={"output": model(batch)})
        run.bus.emit("after_predict_epoch")
    assert load(tmp_path / "predictions.pt") == ([0, 1, 2, 3, 4], PREDICTIONS)


def test_training_is_unaffected(tmp_path: Path) -> None:
    model = line()
    data = DataLoader(TensorDataset(INPUTS, INPUTS), 2)
    options = {"train_loader": data, "loss_fn": nn.functional.mse_loss, "epochs": 1, "default_hooks": False}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    Trainer(model, optimizer, hooks=[PredictionsHook()], work_dir=None, device="cpu", **options).fit()  # type: ignore[arg-type]
    assert list_files(tmp_path) == []
