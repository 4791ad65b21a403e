"""The hook in trainings: once, before the first iteration, without a trace."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.data import get_rng_state
from hookbus.errors import ConfigError, HookbusError
from hookbus.testing import check_hook, fingerprint
from hookbus_model_summary import ModelSummaryHook

from .toys import CNN, images


def make_data() -> Any:
    return DataLoader(TensorDataset(images(8), torch.arange(8) % 10), batch_size=2, shuffle=True)


def make_trainer(*hooks: Hook, model: Any = None, **options: Any) -> tuple[Trainer, io.StringIO]:
    torch.manual_seed(0)
    model = CNN() if model is None else model
    defaults: dict[str, Any] = {
        "loss_fn": nn.functional.cross_entropy,
        "train_loader": make_data(),
        "epochs": 1,
        "work_dir": None,
        "default_hooks": False,
        "device": "cpu",
        "seed": 1,
    }
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), hooks=hooks, **{**defaults, **options})
    output = io.StringIO()
    trainer.register_service("console", Console(file=output, width=160))
    return trainer, output


class TestOutput:
    def test_table_is_printed_once_before_the_first_iteration(self) -> None:
        output = io.StringIO()
        printed: list[bool] = []
        trainer, output = make_trainer(ModelSummaryHook())
        trainer.bus.on("after_forward")(lambda: printed.append("Conv2d" in output.getvalue()))
        trainer.fit()
        trainer.fit(epochs=2)

        assert printed == [True] * 8
        assert output.getvalue().count("Conv2d") == 1
        assert "FLOPs: 10,944 in a forward pass for inputs [2, 1, 8, 8]" in output.getvalue()

    def test_depth(self) -> None:
        trainer, output = make_trainer(ModelSummaryHook(max_depth=-1))
        trainer.fit()
        assert "head.2" in output.getvalue()

    def test_depth_0_prints_nothing(self) -> None:
        trainer, output = make_trainer(ModelSummaryHook(max_depth=0))
        trainer.fit()
        assert output.getvalue() == ""

    def test_two_instances(self) -> None:
        trainer, output = make_trainer(ModelSummaryHook(name="a"), ModelSummaryHook(name="b", max_depth=2))
        trainer.fit()
        assert output.getvalue().count("CNN: 1,498 parameters") == 2

    def test_standard_output_without_a_console(self, capsys: pytest.CaptureFixture[str]) -> None:
        trainer, _ = make_trainer(ModelSummaryHook())
        trainer.register_service("console", None)
        trainer.fit()
        assert capsys.readouterr().out.count("Conv2d") == 1

    def test_step_function(self) -> None:
        trainer, output = make_trainer(
            ModelSummaryHook(), loss_fn=None, step_fn=lambda model, batch: model(batch[0]).square().mean()
        )
        trainer.fit()
        assert "FLOPs: 10,944" in output.getvalue()

    def test_lazy_model(self) -> None:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.LazyBatchNorm1d(affine=False))
        trainer, output = make_trainer(ModelSummaryHook(), model=model)
        trainer.fit()
        assert "Flatten" in output.getvalue()
        assert "unknown, because the forward pass would initialize the lazy parameters" in output.getvalue()

    @pytest.mark.parametrize("setting", ["frequency", "when"])
    def test_schedule_is_refused(self, setting: str) -> None:
        with pytest.raises(HookbusError, match="the summary is printed once"):
            ModelSummaryHook(**{setting: {"frequency": 2, "when": "every(2)"}[setting]})


class TestUnchanged:
    def test_training_is_bitwise_the_same(self) -> None:
        trainers = [make_trainer(*hooks, epochs=2)[0] for hooks in ([], [ModelSummaryHook(max_depth=-1)])]
        for trainer in trainers:
            trainer.fit()
        assert len({fingerprint(trainer.model.state_dict()) for trainer in trainers}) == 1

    def test_example_forward_changes_nothing(self) -> None:
        class Probe(Hook):
            """Compare the state before and after the summary, in whose place between them it runs."""

            def before_train_iter(self, run: Run, batch: Any) -> None:
                assert run.model is not None
                before = self.read(run, batch)
                summary.summarize(run, batch)
                assert self.read(run, batch) == before

            @staticmethod
            def read(run: Run, batch: Any) -> list[Any]:
                model: Any = run.model
                grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
                modes = [module.training for module in model.modules()]
                state = fingerprint([model.state_dict(), grads, get_rng_state(), batch])
                return [state, modes, torch.is_grad_enabled()]

        class InPlace(CNN):
            def forward(self, images: Any) -> Any:
                return super().forward(images.mul_(2.0))

        summary = ModelSummaryHook()
        trainer, _ = make_trainer(Probe(), model=InPlace())
        trainer.model.norm.eval()
        trainer.fit()

    @pytest.mark.parametrize("iteration", [0, 2])
    def test_resumed_run_prints_no_second_table(self, iteration: int, tmp_path: Path) -> None:
        from tests.toys import Saver

        def train(**options: Any) -> tuple[Trainer, io.StringIO]:
            saver = Saver() if iteration else Saver("before_epoch")
            trainer, output = make_trainer(ModelSummaryHook(), saver, work_dir=tmp_path / "x", **options)
            trainer.fit()
            return trainer, output

        full, _ = train()
        path = tmp_path / "x" / "checkpoints" / f"iter_{iteration}.pth"
        rest, output = train(resume=str(path))
        assert output.getvalue().count("Conv2d") == (0 if iteration else 1)
        assert fingerprint(rest.model.state_dict()) == fingerprint(full.model.state_dict())


class TestCustomLoop:
    @staticmethod
    def loop(bus: HookBus, batch: Any, *, emits_before: bool = True, **options: Any) -> str:
        output, model = io.StringIO(), CNN()
        with bus.run(model=model, epochs=1, work_dir=None, **options) as run:
            run.provide("console", Console(file=output, width=160))
            for _ in run.epochs():
                for _ in range(2):
                    if emits_before:
                        bus.emit("before_train_iter", batch=batch)
                    bus.emit("after_train_iter", batch=batch)
        return output.getvalue()

    @pytest.mark.parametrize("emits_before", [True, False])
    @pytest.mark.parametrize("batch", [(images(), 0), [images()], {"images": images()}, images()], ids=range(4))
    def test_model_is_called_with_the_batch(self, batch: Any, emits_before: bool) -> None:
        output = self.loop(HookBus([ModelSummaryHook()]), batch, emits_before=emits_before)
        assert output.count("Conv2d") == 1
        assert "FLOPs: 10,944" in output

    def test_loop_without_batches(self) -> None:
        assert "unknown, because the loop passes no batch" in self.loop(HookBus([ModelSummaryHook()]), None)

    def test_batch_that_the_model_does_not_accept(self) -> None:
        output = self.loop(HookBus([ModelSummaryHook()]), (1, 2, 3))
        assert "unknown, because the forward pass of an example failed: TypeError" in output

    def test_run_without_a_model_is_an_error(self) -> None:
        with (
            pytest.raises(ConfigError, match="requires a model, got None"),
            HookBus([ModelSummaryHook()]).run(epochs=1, work_dir=None),
        ):
            pass

    @pytest.mark.parametrize("order", ["nested", "ascending"])
    def test_both_orders(self, order: Any) -> None:
        assert "FLOPs: 10,944" in self.loop(HookBus([ModelSummaryHook()], order=order), (images(), 0))


@pytest.mark.slow
def test_compiled_model_is_not_recompiled() -> None:
    compiled = torch.compile(CNN(), backend="eager")
    trainer, output = make_trainer(ModelSummaryHook(), model=compiled)
    torch._dynamo.utils.counters.clear()
    trainer.fit()
    assert "FLOPs: 10,944" in output.getvalue()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_hook_passes_the_check() -> None:
    check_hook(ModelSummaryHook)
