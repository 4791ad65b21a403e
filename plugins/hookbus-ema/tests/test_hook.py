"""EMA hook in a run: updates, validation, checkpoints, resume, and overlap."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hookbus import Hook, HookBus
from hookbus._run.requests import Request
from hookbus._run.run import Run
from hookbus.checkpoint.state import read_checkpoint, write_checkpoint
from hookbus.errors import CheckpointError, HookError
from hookbus.testing import check_hook, fingerprint
from hookbus.trainer.trainer import Trainer
from hookbus_ema import EMAHook, ExponentialMovingAverage


@pytest.fixture(autouse=True)
def _skip_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip `fsync`: these tests do not depend on durability after a power loss."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Saver(Hook):
    """Request a checkpoint after each of the iterations, and write it."""

    def __init__(self, *iterations: int) -> None:
        super().__init__()
        self.iterations = iterations

    def before_run(self, run: Run) -> None:
        run.provide("checkpoint_saver", self)

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done in self.iterations:
            run.request_save()

    def plan(self, run: Run, requests: list[Request]) -> Path:
        return Path(run.require("checkpoints_dir")) / f"iter_{run.iters_done}.pth"

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool:
        write_checkpoint(self.plan(run, []), checkpoint, generation=run.iters_done)
        return False


class ValidationRequester(Hook):
    """Request a validation after each of the iterations."""

    def __init__(self, *iterations: int) -> None:
        super().__init__()
        self.iterations = iterations

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done in self.iterations:
            run.request_validation()


class WeightRecorder(Hook):
    """Record the weight and its average after each iteration, and the weight in the model during validations."""

    def __init__(self) -> None:
        super().__init__()
        self.raw: list[float] = []
        self.averages: list[float] = []
        self.validated: list[float] = []
        self.during_validation: list[tuple[float, float]] = []

    def after_train_iter(self, run: Run, model: nn.Module) -> None:
        self.raw.append(get_weight(model.state_dict()))
        self.averages.append(get_weight(run.weights.averaged()))

    def before_val(self, run: Run, model: nn.Module) -> None:
        self.validated.append(get_weight(model.state_dict()))
        self.during_validation.append((get_weight(run.weights.raw()), get_weight(run.weights.averaged())))


def get_weight(weights: dict[str, Any] | None) -> float:
    assert weights is not None
    return float(weights["weight"].reshape(-1)[0])


def track(hook: EMAHook, model: nn.Linear, values: Iterable[float], **options: Any) -> list[float]:
    """Return the average after each iteration of a loop without an optimizer. Later calls continue on the same bus."""
    bus = HookBus([hook]) if hook._run is None else hook.run.bus
    with bus.run(model=model, **options) as run:
        return [get_weight(hook.averaged()) for _ in set_weights(run, model, values) if not is_pending(hook)]


def set_weights(run: Run, model: nn.Linear, values: Iterable[float]) -> Iterator[None]:
    """Run an iteration for each of the values, which becomes the weight."""
    for i, value in enumerate(values):
        run.bus.emit("before_train_iter", batch_idx=i)
        nn.init.constant_(model.weight, value)
        run.bus.emit("after_train_iter", batch_idx=i)
        yield


def one_weight(value: float = 0.0) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


class CountUp(nn.Module):
    """Model whose loss has the gradient -1, so that SGD with a learning rate of 1 adds 1 to the weight at each step."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(value))

    def forward(self, batch: Tensor) -> Tensor:
        return -self.weight * batch.mean()


ONES = [torch.ones(2)] * 4
WRAPPERS: dict[str, Callable[[nn.Module], Any]] = {
    "none": lambda model: model,
    "DataParallel": nn.DataParallel,
    "compile": lambda model: torch.compile(model, backend="eager"),
}


def count_up(*hooks: object, model: nn.Module | None = None, batches: int = 4, **options: Any) -> tuple[Run, Trainer]:
    """Train with a Trainer; the weight of the model is the number of completed steps."""
    model = CountUp() if model is None else model
    defaults: dict[str, Any] = {"epochs": 1, "work_dir": None, "default_hooks": False, "device": "cpu"}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = Trainer(model, optimizer, train_loader=ONES[:1] * batches, hooks=hooks, **{**defaults, **options})
    return trainer.fit(), trainer


def halving(**settings: Any) -> EMAHook:
    """Return a hook whose new average is halfway between the old average and the weight."""
    return EMAHook({"momentum": 0.5, "warm_up": 0, **settings})


@pytest.mark.slow
def test_hook_passes_the_conformance_check() -> None:
    check_hook(EMAHook)
    check_hook(EMAHook, overlap=True, interval=2, update_buffers=True, device="cpu")


def test_hook_rejects_a_run_without_a_model() -> None:
    bus = HookBus([EMAHook()])
    with (
        pytest.raises(HookError, match="hook 'ema' .*requires the model of the run, got None. Pass `model`"),
        bus.run(),
    ):
        pass


class TestUpdates:
    def test_average_is_updated_after_each_step(self) -> None:
        recorder = WeightRecorder()
        count_up(halving(), recorder)

        assert recorder.raw == [1, 2, 3, 4]
        assert recorder.averages == [0.5, 1.25, 2.125, 3.0625]

    def test_average_is_updated_once_per_accumulation(self) -> None:
        recorder = WeightRecorder()
        count_up(halving(), recorder, accumulate=2)

        assert recorder.raw == [0, 1, 1, 2]
        assert recorder.averages == [0, 0.5, 0.5, 1.25]

    def test_interval_and_warm_up_count_steps(self) -> None:
        recorder = WeightRecorder()
        count_up(EMAHook(momentum=0.9, warm_up=10, interval=2), recorder, accumulate=2, batches=8)

        second = 2 * (1 - 3 / 12)
        fourth = 5 / 14 * second + 4 * (1 - 5 / 14)
        assert recorder.averages == pytest.approx([0, 0, 0, second, second, second, second, fourth])

    @pytest.mark.parametrize("overlap", [False, True])
    def test_step_skipped_by_the_scaler_is_no_update(self, overlap: bool) -> None:
        """The third batch overflows, so the scaler skips its step."""
        recorder, model, bus = WeightRecorder(), CountUp(), HookBus([halving(overlap=overlap)])
        bus.register(recorder)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with bus.run(model=model, optimizer=optimizer, scaler=scaler):
            for i, size in enumerate([1.0, 1.0, float("inf"), 1.0]):
                optimizer.zero_grad()
                scaler.scale(model(torch.full((2,), size))).backward()
                scaler.step(optimizer)
                scaler.update()
                bus.emit("after_train_iter", batch_idx=i)

        assert recorder.raw == [1, 2, 2, 3]
        assert recorder.averages == [0.5, 1.25, 1.25, 2.125]

    def test_step_skipped_by_a_trainer_in_fp16_is_no_update(self) -> None:
        recorder = WeightRecorder()
        loader = [torch.ones(2), torch.full((2,), float("inf")), torch.ones(2)]
        model = CountUp()
        Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            train_loader=loader,
            epochs=1,
            precision="fp16",
            hooks=[halving(), recorder],
            default_hooks=False,
            work_dir=None,
            device="cpu",
        ).fit()

        assert recorder.raw == [1, 1, 2]
        assert recorder.averages == [0.5, 0.5, 1.25]

    def test_average_is_updated_for_each_step_of_an_iteration(self) -> None:
        model, hook = CountUp(), halving()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        bus = HookBus([hook])
        with bus.run(model=model, optimizer=optimizer):
            for _ in range(3):
                optimizer.zero_grad()
                model(ONES[0]).backward()
                optimizer.step()
            bus.emit("after_train_iter", batch_idx=0)

        assert get_weight(hook.averaged()) == 2.125

    def test_average_is_updated_per_iteration_without_an_optimizer(self) -> None:
        for overlap in (False, True):
            hook, model = halving(overlap=overlap), one_weight()
            assert track(hook, model, [1, 2, 3, 4]) == [0.5, 1.25, 2.125, 3.0625]

    def test_average_is_updated_at_each_step_that_the_loop_emits(self) -> None:
        model, recorder = one_weight(), WeightRecorder()
        bus = HookBus([halving(), recorder])
        with bus.run(model=model, counts_steps=True):
            for i in range(4):
                bus.emit("before_train_iter", batch_idx=i)
                if i % 2:
                    bus.emit("before_optimizer_step")
                    nn.init.constant_(model.weight, (i + 1) / 2)
                    bus.emit("after_optimizer_step")
                bus.emit("after_train_iter", batch_idx=i)

        assert recorder.averages == [0, 0.5, 0.5, 1.25]

    def test_average_starts_before_a_step_without_preceding_events(self) -> None:
        model, hook = CountUp(), halving()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        bus = HookBus([hook])
        with bus.run(model=model, optimizer=optimizer):
            model(ONES[0]).backward()
            optimizer.step()
            bus.emit("after_train_iter", batch_idx=0)

        assert get_weight(hook.averaged()) == 0.5

    def test_training_with_the_averages_in_the_model_is_rejected(self) -> None:
        class Applier(Hook):
            def before_train_iter(self, run: Run) -> None:
                stack.enter_context(run.weights.applied())

        with (
            ExitStack() as stack,
            pytest.raises(RuntimeError, match="averaged weights are in the model, so an update"),
        ):
            count_up(halving(), Applier())


class TestLoops:
    @pytest.mark.parametrize("settings", [{}, {"overlap": True}, {"device": "cpu"}, {"update_buffers": True}])
    def test_trainer_and_custom_loop_produce_bitwise_identical_averages(self, settings: dict[str, Any]) -> None:
        expected = expected_average(update_buffers="update_buffers" in settings)
        for loop in (run_trainer, run_custom_loop):
            hook = EMAHook(momentum=0.9, warm_up=5, **settings)
            model = loop(hook)

            assert fingerprint(hook.averaged()) == fingerprint(expected), loop
            assert fingerprint(model.state_dict()) == fingerprint(run_custom_loop().state_dict())


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def pairs(batches: int = 5) -> list[tuple[Tensor, Tensor]]:
    inputs = torch.randn(batches, 6, 4, generator=torch.Generator().manual_seed(1))
    return [(batch, (batch.sum(1) > 0).long()) for batch in inputs]


def run_custom_loop(*hooks: object, work_dir: Path | None = None, resume: Any = "never", epochs: int = 3) -> nn.Module:
    """Train with a custom loop."""
    model, bus = net(), HookBus(hooks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(7)
    with bus.run(model=model, optimizer=optimizer, epochs=epochs, work_dir=work_dir, resume=resume) as run:
        for _ in run.epochs():
            for i, (inputs, targets) in run.batches(pairs()):
                bus.emit("before_train_iter", batch_idx=i)
                optimizer.zero_grad()
                functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
                bus.emit("after_train_iter", batch_idx=i)
    return model


def run_trainer(*hooks: object, work_dir: Path | None = None, resume: Any = "never", epochs: int = 3) -> nn.Module:
    model = net()
    torch.manual_seed(7)
    Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        functional.cross_entropy,
        pairs(),
        epochs=epochs,
        hooks=hooks,
        default_hooks=False,
        work_dir=work_dir,
        resume=resume,
        device="cpu",
    ).fit()
    return model


def expected_average(**options: Any) -> dict[str, Tensor]:
    """Return the average of the same training without hookbus."""
    model = net()
    average = ExponentialMovingAverage(model, 0.9, warm_up=5, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(7)
    for inputs, targets in pairs() * 3:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        average.update()
    return average.averaged()


class TestValidation:
    def test_validation_evaluates_the_averages_and_the_run_provides_both(self) -> None:
        recorder = WeightRecorder()
        count_up(halving(), ValidationRequester(2), recorder, val_loader=ONES)

        assert recorder.validated == [1.25, 3.0625]  # after iteration 2, and at the end of the epoch
        assert recorder.during_validation == [(2, 1.25), (4, 3.0625)]
        assert recorder.raw == [1, 2, 3, 4]

    def test_failed_validation_restores_the_raw_weights(self) -> None:
        class Failure(Hook):
            def after_val_iter(self) -> None:
                raise ZeroDivisionError

        model = CountUp()
        with pytest.raises(ZeroDivisionError):
            count_up(halving(), Failure(), model=model, val_loader=ONES)
        assert model.weight.item() == 4

    def test_validation_of_a_custom_loop_evaluates_the_averages(self) -> None:
        model, validated = one_weight(), []

        def validate() -> dict[str, float]:
            validated.append(model.weight.item())
            return {"loss": 0.0}

        bus = HookBus([halving(), ValidationRequester(2)])
        with bus.run(model=model, validate=validate):
            for i in range(3):
                bus.emit("before_train_iter", batch_idx=i)
                nn.init.constant_(model.weight, i + 1)
                bus.emit("after_train_iter", batch_idx=i)
        assert validated == [1.25]
        assert model.weight.item() == 3

    def test_validation_restores_training_mode_and_gradients(self) -> None:
        class ModeRecorder(Hook):
            modes: list[tuple[bool, bool]]

            def before_run(self) -> None:
                self.modes = []

            def before_train_iter(self, model: nn.Module) -> None:
                self.modes.append((model.training, torch.is_grad_enabled()))

        recorder = ModeRecorder()
        count_up(halving(), ValidationRequester(2), recorder, val_loader=ONES)
        assert recorder.modes == [(True, True)] * 4

    def test_test_after_training_evaluates_the_averages(self) -> None:
        class WeightInTestRecorder(Hook):
            weight: float

            def before_test(self, model: nn.Module) -> None:
                self.weight = get_weight(model.state_dict())

        recorder, model = WeightInTestRecorder(), CountUp()
        _, trainer = count_up(halving(), recorder, model=model, test_loader=ONES)
        trainer.test()

        assert recorder.weight == 3.0625
        assert model.weight.item() == 4

    def test_averages_are_in_the_model_inside_applied_only(self) -> None:
        hook, model = halving(), CountUp()
        count_up(hook, model=model)
        with hook.applied():
            assert model.weight.item() == 3.0625
            assert get_weight(hook.raw()) == 4
        assert model.weight.item() == 4
        assert hook.raw() is None

    def test_applied_is_a_no_op_before_training(self) -> None:
        hook, model = halving(), CountUp()
        HookBus([hook])
        with hook.applied():
            assert model.weight.item() == 0
        assert hook.averaged() is None
        assert hook.average is None


class TestFiles:
    def test_checkpoint_contains_raw_and_averaged_weights_of_the_same_step(self, tmp_path: Path) -> None:
        for name, order in (("a", "nested"), ("b", "ascending")):
            count_up(halving(), Saver(1, 4), order=order, work_dir=tmp_path / name)
            for iteration, average in ((1, 0.5), (4, 3.0625)):
                checkpoint = read_checkpoint(tmp_path / name / f"checkpoints/iter_{iteration}.pth")
                assert get_weight(checkpoint["state_dict"]) == iteration
                assert get_weight(checkpoint["ema_state_dict"]) == average

    def test_checkpoint_contains_the_averages_once(self, tmp_path: Path) -> None:
        sizes = {}
        for name, hooks in (("with", [EMAHook()]), ("without", [])):
            model = nn.Sequential(nn.Linear(300, 300), CountUp())
            model.forward = lambda batch, inner=model[1]: inner(batch)  # type: ignore[method-assign]
            count_up(*hooks, Saver(1), model=model, work_dir=tmp_path / name)
            sizes[name] = (tmp_path / name / "checkpoints/iter_1.pth").stat().st_size
        copies = (sizes["with"] - sizes["without"]) / (4 * 300 * 300)
        assert 1 <= copies < 1.1

    def test_checkpoint_requested_during_a_validation_contains_the_raw_weights(self, tmp_path: Path) -> None:
        class SaveRequester(Hook):
            def after_val(self, run: Run) -> None:
                run.request_save()

        count_up(halving(), SaveRequester(), Saver(), ValidationRequester(2), val_loader=ONES, work_dir=tmp_path)
        checkpoint = read_checkpoint(tmp_path / "checkpoints/iter_2.pth")
        assert get_weight(checkpoint["state_dict"]) == 2
        assert get_weight(checkpoint["ema_state_dict"]) == 1.25

    def test_raw_weights_inside_applied_include_extra_state(self) -> None:
        class ExtraState(nn.Linear):
            def get_extra_state(self) -> dict[str, int]:
                return {"count": 3}

            def set_extra_state(self, state: dict[str, int]) -> None:
                pass

        model, hook = ExtraState(1, 1), halving()
        bus = HookBus([hook])
        with bus.run(model=model) as run:
            list(set_weights(run, model, [1, 2]))
            expected = fingerprint(model.state_dict())
            with hook.applied():
                assert fingerprint(run.weights.raw()) == expected

    def test_training_does_not_change_a_written_checkpoint(self, tmp_path: Path) -> None:
        count_up(halving(), Saver(1), batches=9, work_dir=tmp_path)
        checkpoint = read_checkpoint(tmp_path / "checkpoints/iter_1.pth")

        assert get_weight(checkpoint["ema_state_dict"]) == 0.5
        assert get_weight(checkpoint["hooks"]["ema"]["state"]["averaged"]) == 0.5

    @pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
    def test_averages_have_the_names_of_the_unwrapped_model(self, wrap: Callable[[nn.Module], Any]) -> None:
        model, hook = one_weight(), halving()
        bus = HookBus([hook])
        with bus.run(model=wrap(model)) as run:
            list(set_weights(run, model, [1]))

        assert {name: value.item() for name, value in (hook.averaged() or {}).items()} == {"weight": 0.5}
        with hook.applied():
            assert model.weight.item() == 0.5


class TestResume:
    @pytest.mark.parametrize("loop", [run_trainer, run_custom_loop])
    @pytest.mark.parametrize(
        ("settings", "iteration"),
        [({}, 7), ({"interval": 3}, 8), ({"update_buffers": True}, 5), ({"overlap": True}, 7), ({"device": "cpu"}, 10)],
    )
    def test_resumed_run_is_identical_to_an_uninterrupted_one(
        self, loop: Callable[..., nn.Module], settings: dict[str, Any], iteration: int, tmp_path: Path
    ) -> None:
        uninterrupted, resumed = (EMAHook(momentum=0.9, warm_up=5, **settings) for _ in range(2))
        expected = loop(uninterrupted, Saver(iteration), work_dir=tmp_path / "a")
        file = tmp_path / "a" / f"checkpoints/iter_{iteration}.pth"
        actual = loop(resumed, Saver(), work_dir=tmp_path / "b", resume=file)

        assert fingerprint(actual.state_dict()) == fingerprint(expected.state_dict())
        assert fingerprint(resumed.state_dict()) == fingerprint(uninterrupted.state_dict())
        assert not torch.equal(resumed.averaged()["0.weight"], expected.state_dict()["0.weight"])  # type: ignore[index]

    def test_raw_and_averaged_weights_are_restored_separately(self, tmp_path: Path) -> None:
        count_up(halving(), Saver(4), work_dir=tmp_path / "a")
        recorder = WeightRecorder()
        file = tmp_path / "a/checkpoints/iter_4.pth"
        count_up(halving(), recorder, batches=4, epochs=2, work_dir=tmp_path / "b", resume=file)

        assert (recorder.raw[0], recorder.averages[0]) == (5, 4.03125)

    def test_test_of_a_checkpoint_evaluates_its_averages(self, tmp_path: Path) -> None:
        class WeightInTestRecorder(Hook):
            weight: float

            def before_test(self, model: nn.Module) -> None:
                self.weight = get_weight(model.state_dict())

        count_up(halving(), Saver(4), work_dir=tmp_path)
        recorder, model = WeightInTestRecorder(), CountUp()
        Trainer(
            model,
            test_loader=ONES,
            hooks=[halving(), recorder],
            default_hooks=False,
            device="cpu",
            work_dir=None,
            resume=tmp_path / "checkpoints/iter_4.pth",
        ).test()

        assert recorder.weight == 3.0625
        assert model.weight.item() == 4

    def test_average_starts_at_the_weights_of_a_checkpoint_without_averages(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        count_up(Saver(4), work_dir=tmp_path / "a")
        recorder = WeightRecorder()
        file = tmp_path / "a/checkpoints/iter_4.pth"
        count_up(EMAHook(momentum=0.9, warm_up=9), recorder, epochs=2, work_dir=None, resume=file)

        assert "No state of hook 'ema' in the checkpoint; it is re-initialized." in caplog.messages
        assert recorder.averages[0] == pytest.approx(0.2 * 4 + 0.8 * 5)

    def test_averages_of_another_model_are_rejected(self, tmp_path: Path) -> None:
        class Editor(Hook):
            def after_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
                averages = checkpoint["hooks"]["ema"]["state"]["averaged"]
                averages["renamed"] = averages.pop("weight")

        count_up(halving(), Saver(4), work_dir=tmp_path)
        model, file = CountUp(), tmp_path / "checkpoints/iter_4.pth"
        with pytest.raises(CheckpointError, match="hook 'ema': averages do not match .* shape: weight, renamed"):
            count_up(halving(), Editor(), model=model, epochs=2, resume=file)
        assert model.weight.item() == 4

    @pytest.mark.parametrize("compiled", [True, False])
    @pytest.mark.parametrize("key", ["resume", "resume_from"])
    def test_averages_are_loaded_into_a_model_whose_layers_are_wrapped_differently(
        self, key: str, compiled: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def train(hook: EMAHook, *hooks: Hook, is_compiled: bool, **options: Any) -> Run:
            torch.manual_seed(0)
            layer = nn.Linear(4, 2)
            model = nn.Sequential(torch.compile(layer, backend="eager") if is_compiled else layer)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loss, data = functional.cross_entropy, pairs()
            settings = {"default_hooks": False, "device": "cpu", "work_dir": tmp_path, "epochs": 1, **options}
            return Trainer(model, optimizer, loss, data, hooks=[hook, *hooks], **settings).fit()

        file, first = tmp_path / "checkpoints/iter_5.pth", halving()
        train(first, Saver(5), is_compiled=compiled)
        assert list(read_checkpoint(file)["hooks"]["ema"]["state"]["averaged"]) == ["0.weight", "0.bias"]
        second = halving(resume_from=str(file)) if key == "resume_from" else halving()
        options = {"resume": file} if key == "resume" else {"iterations": 0, "epochs": None}
        train(second, is_compiled=not compiled, **options | {"work_dir": None})

        expected, actual = (list((hook.averaged() or {}).values()) for hook in (first, second))
        assert all(map(torch.equal, actual, expected))
        assert not [message for message in caplog.messages if message.startswith("resume_from")]

    def test_second_run_continues_the_average_and_a_fresh_one_resets_it(self) -> None:
        hook, model = halving(), one_weight()
        assert track(hook, model, [1, 2]) == [0.5, 1.25]
        assert track(hook, model, [3, 4]) == [2.125, 3.0625]
        assert track(hook, model, [2], fresh=True) == [3]

    def test_second_run_with_a_rebuilt_model_continues_the_average(self) -> None:
        hook, model = halving(), one_weight()
        assert track(hook, one_weight(), [1, 2]) == [0.5, 1.25]
        assert track(hook, model, [3, 4]) == [2.125, 3.0625]
        with hook.applied():
            assert model.weight.item() == 3.0625

    def test_manually_loaded_state_is_used_by_the_next_run(self) -> None:
        hook = halving()
        hook.load_state_dict({"steps": 4, "averaged": {"weight": torch.full((1, 1), 3.0625)}, "begun_at": 0})
        assert get_weight(hook.state_dict()["averaged"]) == 3.0625
        assert track(hook, one_weight(4), [5]) == [4.03125]

    def test_state_from_before_training_contains_no_average(self) -> None:
        hook = halving()
        assert track(hook, one_weight(), [1]) == [0.5]
        hook.load_state_dict(halving().state_dict())

        assert hook.averaged() is None
        assert track(hook, one_weight(4), [5]) == [4.5]


class TestStartingFromOthers:
    def test_average_starts_at_loaded_weights(self, tmp_path: Path) -> None:
        count_up(halving(), Saver(4), work_dir=tmp_path)
        file = tmp_path / "checkpoints/iter_4.pth"
        for which, raw, average in (("raw", 5, 4.5), ("averaged", 4.0625, 3.5625)):
            recorder = WeightRecorder()
            count_up(halving(), recorder, load_from=file, load_weights=which)
            assert (recorder.raw[0], recorder.averages[0]) == (raw, average)

    def test_average_of_a_new_head_starts_at_its_initial_weights(self, tmp_path: Path) -> None:
        """The file has three classes and an additional buffer, the model has five classes."""
        old = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 3)})
        new = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 5)})
        old.register_buffer("count", torch.ones(1))
        torch.save(old.state_dict(), tmp_path / "old.pth")
        head, hook = fingerprint(new["head"].state_dict()), EMAHook()
        count_up(hook, model=new, epochs=0, load_from=tmp_path / "old.pth", load_strict=False)

        averages = hook.averaged()
        assert averages is not None
        assert torch.equal(averages["body.weight"], old["body"].weight)
        assert fingerprint(new["head"].state_dict()) == head
        assert fingerprint(averages) == fingerprint(new.state_dict())

    def test_resume_from_continues_the_averages_of_a_checkpoint_in_a_new_run(self, tmp_path: Path) -> None:
        count_up(EMAHook(momentum=0.9, warm_up=10), Saver(4), work_dir=tmp_path)
        file = tmp_path / "checkpoints/iter_4.pth"
        initial, recorder = get_weight(read_checkpoint(file)["ema_state_dict"]), WeightRecorder()
        count_up(EMAHook(momentum=0.9, warm_up=10, resume_from=str(file)), recorder)

        momentum = 6 / 15  # of the fifth step of the warm-up
        assert recorder.raw[0] == 1
        assert recorder.averages[0] == pytest.approx(momentum * initial + (1 - momentum) * 1)

    def test_run_with_resume_from_resumes_bit_exactly(self, tmp_path: Path) -> None:
        count_up(EMAHook(momentum=0.9, warm_up=10), Saver(4), work_dir=tmp_path / "first")
        settings = {"momentum": 0.9, "warm_up": 10, "resume_from": str(tmp_path / "first/checkpoints/iter_4.pth")}
        uninterrupted, resumed = WeightRecorder(), WeightRecorder()
        count_up(EMAHook(settings), Saver(2), uninterrupted, work_dir=tmp_path / "uninterrupted")
        file = tmp_path / "uninterrupted/checkpoints/iter_2.pth"
        count_up(EMAHook(settings), Saver(), resumed, work_dir=tmp_path / "resumed", resume=file)

        assert resumed.averages == uninterrupted.averages[2:]

    def test_resumed_run_ignores_resume_from(self, tmp_path: Path) -> None:
        count_up(halving(), Saver(4), work_dir=tmp_path / "a")
        file = tmp_path / "a/checkpoints/iter_4.pth"
        recorder, other = WeightRecorder(), tmp_path / "nowhere.pth"
        count_up(halving(resume_from=str(other)), recorder, epochs=2, resume=file)

        assert recorder.averages[0] == 4.03125

    def test_missing_resume_from_is_rejected_before_training(self, tmp_path: Path) -> None:
        model, recorder = CountUp(), WeightRecorder()
        with pytest.raises(CheckpointError, match=r"^hook 'ema' .*nowhere\.pth: file does not exist"):
            count_up(EMAHook(resume_from=str(tmp_path / "nowhere.pth")), recorder, model=model)
        assert (model.weight.item(), recorder.averages) == (0, [])

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ({"state_dict": {}}, "contains no averaged weights"),
            ({"ema_state_dict": {"other": torch.ones(3)}}, "matches the model"),
        ],
    )
    def test_resume_from_another_file_is_rejected_by_check(
        self, content: dict[str, Any], message: str, tmp_path: Path
    ) -> None:
        torch.save(content, file := tmp_path / "a.pth")
        hook = EMAHook(resume_from=str(file))
        with (
            pytest.raises(CheckpointError, match=f"^hook 'ema' .*resume_from: .*{message}"),
            HookBus([hook]).run(model=CountUp()),
        ):
            pytest.fail("the loop has started")


class TestOverlap:
    def test_no_update_is_in_progress_when_the_weights_change_or_the_run_ends(self) -> None:
        running: list[bool] = []

        class PendingRecorder(Hook):
            priority = 41

            def before_optimizer_step(self) -> None:
                running.append(is_pending(hook))

            def after_train_iter(self) -> None:
                running.append(is_pending(hook))

        hook = halving(overlap=True)
        count_up(hook, PendingRecorder(), batches=2)

        assert running == [False, True, False, True]
        assert not is_pending(hook)


def is_pending(hook: EMAHook) -> bool:
    return getattr(hook.average, "_future", None) is not None


class TestWrappedBlocks:
    @pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
    def test_average_resumes_with_and_without_wrapped_blocks(self, first: bool, second: bool, tmp_path: Path) -> None:
        def build(wrapped: bool) -> nn.Module:
            block = CountUp()
            return nn.Sequential(nn.DataParallel(block) if wrapped else block)

        def train(wrapped: bool, *hooks: object, **options: Any) -> Run:
            step = lambda model, batch: model(batch).sum()  # noqa: E731
            return count_up(halving(), *hooks, model=build(wrapped), step_fn=step, **options)[0]

        train(first, Saver(2), work_dir=tmp_path)
        path = tmp_path / "checkpoints/iter_2.pth"
        checkpoint = torch.load(path, weights_only=True)
        assert list(checkpoint["ema_state_dict"]) == list(checkpoint["hooks"]["ema"]["state"]["averaged"])
        assert list(checkpoint["ema_state_dict"]) == ["0.weight"]

        averaged = train(second, resume=path).weights.averaged()
        assert averaged is not None
        assert averaged["0.weight"].item() == 3.0625
