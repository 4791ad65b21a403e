"""`Trainer.predict`, and the outputs that `validate` and `test` return."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from hookbus import Hook, HookBus
from hookbus._events.markers import hookimpl
from hookbus._run.run import Run
from hookbus.errors import ConfigError, LoopError, MetricError, RequestError
from hookbus.trainer.trainer import Trainer

INPUTS = torch.arange(5.0)[:, None]
PREDICTIONS = [[1.0], [3.0], [5.0], [7.0], [9.0]]
"""2 x + 1 of the inputs 0, 1, 2, 3, 4."""


def line() -> nn.Linear:
    """Return the model 2 x + 1."""
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(2.0), model.bias.fill_(1.0)
    return model


def trainer(*hooks: object, model: nn.Module | None = None, **options: Any) -> Trainer:
    defaults = {"default_hooks": False, "work_dir": None, "device": "cpu"}
    return Trainer(model or line(), hooks=hooks, **{**defaults, **options})


class Recorder(Hook):
    """Records the point, the loader and the indices or the sizes of each event."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def before_run(self, mode: str) -> None:
        self.events.append(mode)

    def before_predict(self, run: Run) -> None:
        self.events.append(("begin", run.validating, run.model.training, torch.is_grad_enabled()))

    def before_predict_epoch(self, dataloader_name: str | None) -> None:
        self.events.append(dataloader_name)

    def before_predict_iter(self, batch_idx: int, batch: Any) -> None:
        self.events.append((batch_idx, len(batch[0])))

    def after_predict_iter(self, batch_idx: int, outputs: Any, indices: Any) -> None:
        self.events.append((batch_idx, outputs["output"].flatten().tolist(), list(indices)))

    def after_predict_epoch(self, metrics: Any) -> None:
        self.events.append(dict(metrics))

    def after_predict(self, metrics: Any) -> None:
        self.events.append(("end", dict(metrics)))


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(INPUTS)


class Squares(Dataset[Tensor]):
    def __getitem__(self, index: int) -> Tensor:
        return INPUTS[index] ** 2

    def __len__(self) -> int:
        return 5


class TestOrder:
    @pytest.mark.parametrize(
        "loader",
        [
            pytest.param(DataLoader(TensorDataset(INPUTS), 2), id="in order"),
            pytest.param(DataLoader(TensorDataset(INPUTS, INPUTS), 2, shuffle=True), id="shuffled, with targets"),
            pytest.param(DataLoader(TensorDataset(INPUTS), 2, drop_last=True), id="drop_last"),
            pytest.param(DataLoader(TensorDataset(INPUTS), 2, sampler=[3, 0, 4, 2, 1]), id="sampler"),
            pytest.param(DataLoader(TensorDataset(INPUTS), batch_sampler=[[4], [1, 0], [3, 2]]), id="batch sampler"),
            pytest.param(DataLoader(Stream(), 2), id="stream"),
            pytest.param([INPUTS[:2], INPUTS[2:]], id="list"),
        ],
    )
    def test_each_sample_is_predicted_once_in_the_order_of_the_data(self, loader: Any) -> None:
        assert trainer().predict(loader).tolist() == PREDICTIONS

    @pytest.mark.slow
    def test_workers_keep_the_order(self) -> None:
        loader = DataLoader(Squares(), 2, shuffle=True, num_workers=2, persistent_workers=True)
        for _ in range(2):
            assert trainer().predict(loader).tolist() == [[1.0], [3.0], [9.0], [19.0], [33.0]]

    def test_subset_of_a_sampler_is_in_the_order_of_the_dataset(self) -> None:
        assert trainer().predict(DataLoader(TensorDataset(INPUTS), 2, sampler=[4, 1])).tolist() == [[3.0], [9.0]]

    def test_loader_is_unchanged(self) -> None:
        loader = DataLoader(TensorDataset(INPUTS), 2, shuffle=True, drop_last=True)
        trainer().predict(loader)
        assert (len(loader), [len(batch[0]) for batch in loader]) == (2, [2, 2])

    def test_named_loaders_are_predicted_by_name(self) -> None:
        results = trainer().predict({"a": [INPUTS[:1]], "b": [INPUTS[1:3]]})
        assert {name: result.tolist() for name, result in results.items()} == {"a": [[1.0]], "b": [[3.0], [5.0]]}


class TestEvents:
    def test_points_of_a_prediction(self) -> None:
        recorder = Recorder()
        loaders = {"a": [(INPUTS[:2], INPUTS[:2])], "b": [(INPUTS[4:],)]}
        trainer(recorder, loss_fn=nn.functional.mse_loss).predict(loaders)
        assert recorder.events == [
            "predict",
            ("begin", True, False, False),
            *("a", (0, 2), (0, [1.0, 3.0], [0, 1]), {}),
            *("b", (0, 1), (0, [9.0], [0]), {}),
            ("end", {}),
        ]

    def test_indices_are_those_of_the_dataset(self) -> None:
        recorder = Recorder()
        trainer(recorder).predict(DataLoader(TensorDataset(INPUTS), 2, sampler=[4, 1, 0]))
        assert [event[2] for event in recorder.events[3:-2] if len(event) == 3] == [[4, 1], [0]]

    def test_values_that_hooks_log_are_means_over_samples(self) -> None:
        class Log(Hook):
            def after_predict_iter(self, run: Run, outputs: Any) -> None:
                run.log(mean=outputs["output"].mean())

        recorder = Recorder()
        predicting = trainer(recorder, Log())
        predicting.predict([(INPUTS[:2],), (INPUTS[2:3],)])
        assert recorder.events[-1] == ("end", {"predict/mean": 3.0})  # (1 + 3 + 5) / 3
        assert predicting.bus.current.metrics["predict/mean"] == 3.0

    def test_value_logged_outside_of_the_prediction_is_an_error(self) -> None:
        class Log(Hook):
            def before_run(self, run: Run) -> None:
                run.log(x=1)

        with pytest.raises(MetricError, match="no prediction is in progress in this run of mode 'predict'"):
            trainer(Log()).predict([INPUTS])

    def test_step_can_be_replaced_and_wrapped(self) -> None:
        class Replace(Hook):
            def predict_step(self, run: Run, batch: Any) -> dict[str, Tensor]:
                return {"output": run.model(batch["input"]) + 10}

        class Wrap(Hook):
            @hookimpl(wrapper=True)
            def predict_step(self) -> Iterator[None]:
                outputs = yield
                return {"output": -outputs["output"]}

        assert trainer(Replace(), Wrap()).predict([{"input": INPUTS[:2]}]).tolist() == [[-11.0], [-13.0]]


class TestState:
    def test_model_and_random_numbers_are_restored(self) -> None:
        model = nn.Sequential(line(), nn.Dropout(0.9))
        torch.manual_seed(0)
        assert trainer(model=model).predict([INPUTS]).tolist() == PREDICTIONS
        assert model.training
        after = torch.rand(1)
        torch.manual_seed(0)
        assert torch.equal(torch.rand(1), after)

    def test_weights_and_clock_are_unchanged_between_two_trainings(self) -> None:
        data = DataLoader(TensorDataset(INPUTS, INPUTS), 2, shuffle=True)

        def train(*, predicts: bool) -> list[float]:
            model = line()
            options = {"train_loader": data, "loss_fn": nn.functional.mse_loss, "seed": 3, "epochs": 1}
            training = trainer(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), **options)
            training.fit()
            if predicts:
                training.predict(data)
            training.fit(epochs=2)
            assert training.bus.current.iters_done == 6
            return [value.item() for value in model.parameters()]

        assert train(predicts=True) == train(predicts=False)

    def test_averaged_weights_are_applied(self) -> None:
        class Ten(Hook):
            def before_run(self, run: Run) -> None:
                run.around_validation(lambda: self.apply(run.model))

            @contextmanager
            def apply(self, model: Any) -> Iterator[None]:
                with torch.no_grad():
                    model.bias += 9
                yield
                with torch.no_grad():
                    model.bias -= 9

        model = line()
        assert trainer(Ten(), model=model).predict([INPUTS[:1]]).tolist() == [[10.0]]
        assert model.bias.item() == 1.0

    def test_memory_is_not_used_for_predictions_that_are_not_returned(self) -> None:
        references = []

        class Keep(Hook):
            def after_predict_iter(self, outputs: Any) -> None:
                import weakref

                references.append(weakref.ref(outputs["output"]))
                assert sum(reference() is not None for reference in references) <= 2

        assert trainer(Keep()).predict([INPUTS[:1]] * 6, return_predictions=False) is None
        assert len(references) == 6

    def test_loader_of_the_trainer_is_the_default(self) -> None:
        predicting = trainer(predict_loader=[INPUTS[:1]])
        assert predicting.predict().tolist() == [[1.0]]
        assert predicting.predict([INPUTS[1:2]]).tolist() == [[3.0]]
        assert predicting.predict().tolist() == [[1.0]]


class TestErrors:
    def test_loader_is_required(self) -> None:
        with pytest.raises(RequestError, match=r"^The run has no prediction function\. Pass predict_loader= to the"):
            trainer().predict()

    def test_arguments_are_validated(self) -> None:
        with pytest.raises(ConfigError, match=r"loader: should be iterable in every epoch, got 5(.|\n)*return_predict"):
            trainer().predict(5, return_predictions="no")  # type: ignore[arg-type]

    def test_loader_without_batches_is_an_error(self) -> None:
        with pytest.raises(LoopError, match=r"^predict_loader: expected at least one batch, got none"):
            trainer().predict([])


class TestOutputs:
    """Outputs of `validate` and `test`."""

    def test_outputs_are_returned_with_the_metrics(self) -> None:
        loader = DataLoader(TensorDataset(INPUTS, INPUTS), 2, shuffle=True)
        evaluating = trainer(loss_fn=nn.functional.l1_loss, val_loader=loader, test_loader=loader)
        for evaluate, prefix in ((evaluating.validate, "val"), (evaluating.test, "test")):
            metrics, outputs = evaluate(return_outputs=True)
            assert dict(metrics) == {f"{prefix}/loss": 3.0}  # mean of x + 1
            assert outputs.tolist() == PREDICTIONS

    def test_metrics_alone_are_the_default(self) -> None:
        loader = [(INPUTS, INPUTS)]
        assert trainer(loss_fn=nn.functional.l1_loss, val_loader=loader).validate() == {"val/loss": 3.0}


class TestCustomLoop:
    def test_loop_emits_the_points(self) -> None:
        recorder, model = Recorder(), line()
        with HookBus([recorder]).run(model=model, mode="predict") as run:
            run.bus.emit("before_predict_epoch")
            for i, batch in enumerate([INPUTS[:2], INPUTS[2:3]]):
                run.bus.emit("before_predict_iter", batch_idx=i, batch=batch)
                run.bus.emit("after_predict_iter", batch_idx=i, batch=batch, outputs={"output": model(batch)})
            run.bus.emit("after_predict_epoch")
        assert recorder.events[:1] + recorder.events[2:] == [
            *("predict", None, (0, 1), (0, [1.0, 3.0], [0, 1]), (1, 1), (1, [5.0], [2]), {}, ("end", {})),
        ]

    def test_function_is_called_in_evaluation_mode_and_its_result_is_returned(self) -> None:
        recorder, model = Recorder(), line()

        def predict(run: Run) -> Tensor:
            outputs = model(INPUTS)
            run.bus.emit("after_predict_iter", batch_idx=0, batch=INPUTS, outputs={"output": outputs}, indices=range(5))
            return outputs

        with HookBus([recorder]).run(model=model, mode="predict", validate=predict) as run:
            assert run.predict().tolist() == PREDICTIONS
        assert recorder.events[1] == ("begin", True, False, False)

    def test_validation_that_the_loop_begins_is_a_prediction(self) -> None:
        recorder = Recorder()
        run = HookBus([recorder]).open(model=line(), mode="predict")
        run.begin_validation()
        assert run.validating
        run.end_validation()
        run.close()
        assert recorder.events == ["predict", ("begin", True, True, True), None, {}, ("end", {})]


def test_run_file_may_have_a_split_to_predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines_to_predict.py").write_text(
        "import torch\nfrom torch import nn\nfrom torch.utils.data import TensorDataset\n"
        "data = TensorDataset(torch.arange(5.)[:, None])\n"
        "def splits():\n    return {'train': TensorDataset(data.tensors[0], data.tensors[0]), 'predict': data}\n"
        "def model():\n    return nn.Linear(1, 1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "run.yaml").write_text(
        "model: {type: 'lines_to_predict:model'}\ndataset: {type: 'lines_to_predict:splits', batch_size: 2}\n"
        "loss: mse_loss\noptimizer: {type: SGD, lr: 0.1}\ntraining: {epochs: 1}\ndevice: cpu\n"
    )
    predicting = Trainer.from_file(tmp_path / "run.yaml", ["default_hooks=false", f"work_dir={tmp_path}/run"])
    expected = predicting.model(INPUTS)
    assert torch.equal(predicting.predict(), expected)
