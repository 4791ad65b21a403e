"""Distributed prediction: each sample is predicted once, and every rank returns all predictions in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = pytest.mark.slow

LINE = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
    from hookbus import Hook, Trainer

    class Recorder(Hook):
        def before_predict(self):
            self.indices = []

        def after_predict_iter(self, indices):
            self.indices.append(list(indices))

    def build_trainer(*hooks, **options):
        model = nn.Linear(1, 1)
        with torch.no_grad():
            model.weight.fill_(2.0), model.bias.fill_(1.0)
        return Trainer(model, hooks=hooks, default_hooks=False, work_dir=None, device="cpu", **options)

    inputs = torch.arange(5.0)[:, None]
    data = TensorDataset(inputs, inputs)
"""

UNEVEN = """
    recorder, results = Recorder(), []
    trainer = build_trainer(recorder, loss_fn=nn.functional.l1_loss, val_loader=DataLoader(data, 2, shuffle=True))
    loaders = [
        DataLoader(data, 2),
        DataLoader(data, 2, shuffle=True, drop_last=True),
        DataLoader(data, 2, sampler=DistributedSampler(data, 2, RANK, shuffle=True)),
        DataLoader(data, 5),
    ]
    for loader in loaders:
        predictions = trainer.predict(loader)
        results.append((predictions.flatten().tolist(), recorder.indices))
    metrics, outputs = trainer.validate(return_outputs=True)
    report((results, dict(metrics), outputs.flatten().tolist(), trainer.predict(loaders[0], return_predictions=False)))
"""


def test_each_sample_is_predicted_once_and_returned_in_order_on_every_rank(launch: Launch) -> None:
    for rank, (results, metrics, outputs, nothing) in launch(LINE + UNEVEN).reports.items():
        batches = [[[0, 1], [4]], [[2, 3]]][rank]  # of 5 samples, two each, dealt to two ranks
        whole = [[[0, 1, 2, 3, 4]], []][rank]
        assert results == [[[1, 3, 5, 7, 9], indices] for indices in (batches, batches, batches, whole)]
        assert metrics == {"val/loss": 3.0}
        assert outputs == [1, 3, 5, 7, 9]
        assert nothing is None


SHARDED_BY_USER = """
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(inputs[RANK::2])

    trainer = build_trainer(distributed="none")
    sampler = DistributedSampler(data, 2, RANK, shuffle=False)
    loaders = [DataLoader(Stream(), 2), DataLoader(data, 2, sampler=sampler)]
    report([trainer.predict(loader).flatten().tolist() for loader in loaders])
"""


def test_data_that_the_user_divides_are_gathered(launch: Launch) -> None:
    # A stream has no indices: the samples of rank 0 are followed by those of rank 1. The padding is removed.
    assert set(map(str, launch(LINE + SHARDED_BY_USER).reports.values())) == {
        str([[1.0, 5.0, 9.0, 3.0, 7.0], [1.0, 3.0, 5.0, 7.0, 9.0]])
    }


WRITTEN = """
    import json, sys
    from pathlib import Path
    from hookbus.errors import ConfigError
    from hookbus_predictions import PredictionsHook

    directory = Path(sys.argv[1])

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(inputs[RANK::2])

    def predict(loader, strategy="ddp", **settings):
        hook = PredictionsHook(file=str(directory / "p.jsonl"), **settings)
        build_trainer(hook, distributed=strategy).predict(loader, return_predictions=False)
        files = sorted(directory.rglob("*.jsonl")) if RANK == 0 else []
        contents = {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in files}
        return {name: [(row["index"], *row["output"]) for row in rows] for name, rows in contents.items()}

    results = [predict(DataLoader(data, 2, shuffle=True)), predict(DataLoader(data, 2), merge=False, overwrite=True)]
    try:
        predict(DataLoader(data, 2), interval="batch")
    except ConfigError:
        results.append("refused")
    results.append(predict(DataLoader(data, 2), interval="batch", overwrite=True))
    results.append(predict(DataLoader(Stream(), 2), "none", overwrite=True))
    report(results)
"""


def test_predictions_of_all_ranks_are_written_to_one_file_or_to_one_each(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    merged, by_rank, again, batches, stream = launch(LINE + WRITTEN, str(tmp_path / "files")).reports[0]
    rows = [[0, 1.0], [1, 3.0], [2, 5.0], [3, 7.0], [4, 9.0]]
    assert merged == {"p.jsonl": rows}
    assert by_rank == {"p-rank0.jsonl": [rows[0], rows[1], rows[4]], "p-rank1.jsonl": rows[2:4]}
    assert again == "refused"
    assert batches == {"rank0-000000.jsonl": rows[:2], "rank0-000001.jsonl": rows[4:], "rank1-000000.jsonl": rows[2:4]}
    assert stream == {"p.jsonl": [[0, 1.0], [1, 5.0], [2, 9.0], [3, 3.0], [4, 7.0]]}


KILLED = """
    import json, os, signal, sys
    from pathlib import Path
    from hookbus_predictions import PredictionsHook
    from hookbus_predictions.formats import WRITERS

    directory, is_killed = Path(sys.argv[1]), sys.argv[2] == "killed"
    write = WRITERS[".jsonl"]

    def kill(path, rows, count):
        path.write_text("partial")
        os.kill(os.getpid(), signal.SIGKILL)

    WRITERS[".jsonl"] = kill if is_killed and RANK == 0 else write
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(2.0), model.bias.fill_(1.0)
    hook = PredictionsHook(file="p.jsonl", overwrite=True)
    trainer = Trainer(model, hooks=[hook], default_hooks=False, work_dir=directory, device="cpu")
    trainer.predict(DataLoader(data, 2), return_predictions=False)
"""


def test_killed_merge_keeps_the_earlier_file_and_the_next_prediction_leaves_no_other(
    launch: Launch, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "p.jsonl").write_text("earlier")
    assert launch(LINE + KILLED, str(directory), "killed", succeeds=False).exit_codes[0] == -9
    assert (directory / "p.jsonl").read_text() == "earlier"
    launch(LINE + KILLED, str(directory), "complete")
    rows = [json.loads(line) for line in (directory / "p.jsonl").read_text().splitlines()]
    assert rows == [{"index": index, "output": [2 * index + 1.0]} for index in range(5)]
    assert not list(directory.glob(".tmp*"))
