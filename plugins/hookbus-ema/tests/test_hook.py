"""The average of a run: when it is updated, when it is in the model, and what files hold of it."""

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
from hookbus.errors import CheckpointError, HookError, HookWarning
from hookbus.loop import Trainer
from hookbus.requests import Request
from hookbus.run import Run
from hookbus.state import read_checkpoint, write_checkpoint
from hookbus.testing import check_hook, fake_training, fingerprint
from hookbus_ema import EMAHook, ExponentialMovingAverage


@pytest.fixture(autouse=True)
def _the_disk_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here depends on what a loss of power would leave."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Saver(Hook):
    """Asks for a checkpoint after each of these iterations, and writes it."""

    def __init__(self, *iterations: int) -> None:
        super().__init__()
        self.iterations = iterations

    def before_run(self, run: Run) -> None:
        run.provide("saver", self)

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done in self.iterations:
            run.request_save()

    def plan(self, run: Run, requests: list[Request]) -> Path:
        return Path(run.require("checkpoints_dir")) / f"iter_{run.iters_done}.pth"

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool:
        write_checkpoint(self.plan(run, []), checkpoint, generation=run.iters_done)
        return False


class Validating(Hook):
    """Asks for a validation after each of these iterations."""

    def __init__(self, *iterations: int) -> None:
        super().__init__()
        self.iterations = iterations

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done in self.iterations:
            run.request_validation()


class Watch(Hook):
    """Notes the weight and its average after every iteration, and what is in the model during validations."""

    def __init__(self) -> None:
        super().__init__()
        self.raw: list[float] = []
        self.averages: list[float] = []
        self.judged: list[float] = []
        self.during: list[tuple[float, float]] = []

    def after_train_iter(self, run: Run, model: nn.Module) -> None:
        self.raw.append(weight_in(model.state_dict()))
        self.averages.append(weight_in(run.weights.averaged()))

    def before_val(self, run: Run, model: nn.Module) -> None:
        self.judged.append(weight_in(model.state_dict()))
        self.during.append((weight_in(run.weights.raw()), weight_in(run.weights.averaged())))


def weight_in(weights: dict[str, Any] | None) -> float:
    assert weights is not None
    return float(weights["weight"].reshape(-1)[0])


def averages_of(hook: EMAHook, model: nn.Linear, values: Iterable[float], **options: Any) -> list[float]:
    """The average after each iteration of a loop without an optimizer; another call goes on on the same bus."""
    bus = HookBus([hook]) if hook._run is None else hook.run.bus
    with bus.run(model=model, **options) as run:
        return [weight_in(hook.averaged()) for _ in set_weights(run, model, values) if not pending(hook)]


def set_weights(run: Run, model: nn.Linear, values: Iterable[float]) -> Iterator[None]:
    """An iteration for each of these weights."""
    for i, value in enumerate(values):
        run.bus.emit("before_train_iter", batch_idx=i)
        nn.init.constant_(model.weight, value)
        run.bus.emit("after_train_iter", batch_idx=i)
        yield


def one_weight(value: float = 0.0) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


class Upwards(nn.Module):
    """A loss whose gradient is -1, so that SGD with a rate of 1 adds 1 to the weight at each step."""

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
    """A Trainer whose weight is the number of steps done."""
    model = Upwards() if model is None else model
    given: dict[str, Any] = {"epochs": 1, "work_dir": None, "default_hooks": False, "device": "cpu"}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = Trainer(model, optimizer, train_loader=ONES[:1] * batches, hooks=hooks, **{**given, **options})
    return trainer.fit(), trainer


def halving(**settings: Any) -> EMAHook:
    """A hook whose average is always in the middle between the last average and the weight."""
    return EMAHook({"momentum": 0.5, "warm_up": 0, **settings})


def test_it_keeps_what_every_hook_promises() -> None:
    check_hook(EMAHook)
    check_hook(EMAHook, overlap=True, interval=2, update_buffers=True, device="cpu")


def test_a_run_without_a_model_is_refused() -> None:
    bus = HookBus([EMAHook()])
    with pytest.raises(HookError, match="hook 'ema' .*: it averages .* give model= to the run"), bus.run():
        pass


class TestUpdates:
    def test_there_is_one_after_each_step(self) -> None:
        watch = Watch()
        count_up(halving(), watch)

        assert watch.raw == [1, 2, 3, 4]
        assert watch.averages == [0.5, 1.25, 2.125, 3.0625]

    def test_an_accumulation_is_one(self) -> None:
        watch = Watch()
        count_up(halving(), watch, accumulate=2)

        assert watch.raw == [0, 1, 1, 2]
        assert watch.averages == [0, 0.5, 0.5, 1.25]

    def test_the_interval_counts_steps_and_so_does_the_warm_up(self) -> None:
        watch = Watch()
        count_up(EMAHook(momentum=0.9, warm_up=10, interval=2), watch, accumulate=2, batches=8)

        second = 2 * (1 - 3 / 12)
        fourth = 5 / 14 * second + 4 * (1 - 5 / 14)
        assert watch.averages == pytest.approx([0, 0, 0, second, second, second, second, fourth])

    def test_a_schedule_may_replace_the_interval(self) -> None:
        watch = Watch()
        count_up(halving(when="every(2, start=3)"), watch, batches=6)

        assert watch.averages == [0, 0, 1.5, 1.5, 3.25, 3.25]

    @pytest.mark.parametrize("overlap", [False, True])
    def test_a_step_that_the_scaler_left_out_is_none(self, overlap: bool) -> None:
        """The third batch overflows, so the scaler leaves its step out."""
        watch, model, bus = Watch(), Upwards(), HookBus([halving(overlap=overlap)])
        bus.register(watch)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with bus.run(model=model, optimizer=optimizer, scaler=scaler):
            for i, size in enumerate([1.0, 1.0, float("inf"), 1.0]):
                optimizer.zero_grad()
                scaler.scale(model(torch.full((2,), size))).backward()
                scaler.step(optimizer)
                scaler.update()
                bus.emit("after_train_iter", batch_idx=i)

        assert watch.raw == [1, 2, 2, 3]
        assert watch.averages == [0.5, 1.25, 1.25, 2.125]

    def test_a_trainer_in_fp16_leaves_the_same_step_out(self) -> None:
        watch = Watch()
        loader = [torch.ones(2), torch.full((2,), float("inf")), torch.ones(2)]
        model = Upwards()
        Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            train_loader=loader,
            epochs=1,
            precision="fp16",
            hooks=[halving(), watch],
            default_hooks=False,
            work_dir=None,
            device="cpu",
        ).fit()

        assert watch.raw == [1, 1, 2]
        assert watch.averages == [0.5, 0.5, 1.25]

    def test_several_steps_in_one_iteration_are_several(self) -> None:
        model, hook = Upwards(), halving()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        bus = HookBus([hook])
        with bus.run(model=model, optimizer=optimizer):
            for _ in range(3):
                optimizer.zero_grad()
                model(ONES[0]).backward()
                optimizer.step()
            bus.emit("after_train_iter", batch_idx=0)

        assert weight_in(hook.averaged()) == 2.125

    def test_a_loop_without_an_optimizer_makes_one_per_iteration(self) -> None:
        for overlap in (False, True):
            hook, model = halving(overlap=overlap), one_weight()
            assert averages_of(hook, model, [1, 2, 3, 4]) == [0.5, 1.25, 2.125, 3.0625]

    def test_a_loop_that_tells_of_its_steps_itself_makes_one_for_each(self) -> None:
        model, watch = one_weight(), Watch()
        bus = HookBus([halving(), watch])
        with bus.run(model=model, counts_steps=True):
            for i in range(4):
                bus.emit("before_train_iter", batch_idx=i)
                if i % 2:
                    bus.emit("before_optimizer_step")
                    nn.init.constant_(model.weight, (i + 1) / 2)
                    bus.emit("after_optimizer_step")
                bus.emit("after_train_iter", batch_idx=i)

        assert watch.averages == [0, 0.5, 0.5, 1.25]

    def test_a_loop_that_steps_before_it_emits_anything_starts_at_the_first_weights(self) -> None:
        model, hook = Upwards(), halving()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        bus = HookBus([hook])
        with bus.run(model=model, optimizer=optimizer):
            model(ONES[0]).backward()
            optimizer.step()
            bus.emit("after_train_iter", batch_idx=0)

        assert weight_in(hook.averaged()) == 0.5

    def test_training_while_the_averages_are_in_the_model_is_refused(self) -> None:
        class Wrong(Hook):
            def before_train_iter(self, run: Run) -> None:
                left_open.enter_context(run.weights.applied())

        with (
            ExitStack() as left_open,
            pytest.raises(RuntimeError, match="averaged weights are in the model right now"),
        ):
            count_up(halving(), Wrong())


class TestLoops:
    @pytest.mark.parametrize("settings", [{}, {"overlap": True}, {"device": "cpu"}, {"update_buffers": True}])
    def test_trainer_and_own_loop_and_overlap_leave_the_same_bits(self, settings: dict[str, Any]) -> None:
        expected = expected_average(update_buffers="update_buffers" in settings)
        for loop in (by_trainer, by_hand):
            hook = EMAHook(momentum=0.9, warm_up=5, **settings)
            model = loop(hook)

            assert fingerprint(hook.averaged()) == fingerprint(expected), loop
            assert fingerprint(model.state_dict()) == fingerprint(by_hand().state_dict())


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def pairs(batches: int = 5) -> list[tuple[Tensor, Tensor]]:
    inputs = torch.randn(batches, 6, 4, generator=torch.Generator().manual_seed(1))
    return [(each, (each.sum(1) > 0).long()) for each in inputs]


def by_hand(*hooks: object, work_dir: Path | None = None, resume: Any = "never", epochs: int = 3) -> nn.Module:
    """A loop of one's own."""
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


def by_trainer(*hooks: object, work_dir: Path | None = None, resume: Any = "never", epochs: int = 3) -> nn.Module:
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
    """The same training without hookbus."""
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
    def test_it_sees_the_averages_while_the_run_knows_both(self) -> None:
        watch = Watch()
        count_up(halving(), Validating(2), watch, val_loader=ONES)

        assert watch.judged == [1.25, 3.0625]  # after iteration 2, and at the end of the epoch
        assert watch.during == [(2, 1.25), (4, 3.0625)]
        assert watch.raw == [1, 2, 3, 4]

    def test_one_that_raises_leaves_the_raw_weights(self) -> None:
        class Breaks(Hook):
            def after_val_iter(self) -> None:
                raise ZeroDivisionError

        model = Upwards()
        with pytest.raises(ZeroDivisionError):
            count_up(halving(), Breaks(), model=model, val_loader=ONES)
        assert model.weight.item() == 4

    def test_the_same_in_a_loop_of_ones_own(self) -> None:
        model, seen = one_weight(), []

        def validate() -> dict[str, float]:
            seen.append(model.weight.item())
            return {"loss": 0.0}

        bus = HookBus([halving(), Validating(2)])
        with bus.run(model=model, validate=validate):
            for i in range(3):
                bus.emit("before_train_iter", batch_idx=i)
                nn.init.constant_(model.weight, i + 1)
                bus.emit("after_train_iter", batch_idx=i)
        assert seen == [1.25]
        assert model.weight.item() == 3

    def test_model_and_gradient_modes_are_as_before(self) -> None:
        class Modes(Hook):
            seen: list[tuple[bool, bool]]

            def before_run(self) -> None:
                self.seen = []

            def before_train_iter(self, model: nn.Module) -> None:
                self.seen.append((model.training, torch.is_grad_enabled()))

        modes = Modes()
        count_up(halving(), Validating(2), modes, val_loader=ONES)
        assert modes.seen == [(True, True)] * 4

    def test_a_test_after_training_sees_the_averages(self) -> None:
        class Look(Hook):
            judged: float

            def before_test(self, model: nn.Module) -> None:
                self.judged = weight_in(model.state_dict())

        look, model = Look(), Upwards()
        _, trainer = count_up(halving(), look, model=model, test_loader=ONES)
        trainer.test()

        assert look.judged == 3.0625
        assert model.weight.item() == 4

    def test_by_hand_the_averages_are_in_the_model_inside_only(self) -> None:
        hook, model = halving(), Upwards()
        count_up(hook, model=model)
        with hook.applied():
            assert model.weight.item() == 3.0625
            assert weight_in(hook.raw()) == 4
        assert model.weight.item() == 4
        assert hook.raw() is None

    def test_before_training_there_is_nothing_to_put_in(self) -> None:
        hook, model = halving(), Upwards()
        HookBus([hook])
        with hook.applied():
            assert model.weight.item() == 0
        assert hook.averaged() is None
        assert hook.average is None


class TestFiles:
    def test_they_hold_raw_and_averaged_weights_of_the_same_step(self, tmp_path: Path) -> None:
        for name, order in (("a", "nested"), ("b", "ascending")):
            count_up(halving(), Saver(1, 4), order=order, work_dir=tmp_path / name)
            for iteration, average in ((1, 0.5), (4, 3.0625)):
                checkpoint = read_checkpoint(tmp_path / name / f"checkpoints/iter_{iteration}.pth")
                assert weight_in(checkpoint["state_dict"]) == iteration
                assert weight_in(checkpoint["ema_state_dict"]) == average

    def test_the_averages_are_in_a_file_once(self, tmp_path: Path) -> None:
        sizes = {}
        for name, hooks in (("with", [EMAHook()]), ("without", [])):
            model = nn.Sequential(nn.Linear(300, 300), Upwards())
            model.forward = lambda batch, inner=model[1]: inner(batch)  # type: ignore[method-assign]
            count_up(*hooks, Saver(1), model=model, work_dir=tmp_path / name)
            sizes[name] = (tmp_path / name / "checkpoints/iter_1.pth").stat().st_size
        copies = (sizes["with"] - sizes["without"]) / (4 * 300 * 300)
        assert 1 <= copies < 1.1

    def test_a_file_that_is_asked_for_in_a_validation_is_no_different(self, tmp_path: Path) -> None:
        class Ask(Hook):
            def after_val(self, run: Run) -> None:
                run.request_save()

        count_up(halving(), Ask(), Saver(), Validating(2), val_loader=ONES, work_dir=tmp_path)
        checkpoint = read_checkpoint(tmp_path / "checkpoints/iter_2.pth")
        assert weight_in(checkpoint["state_dict"]) == 2
        assert weight_in(checkpoint["ema_state_dict"]) == 1.25

    def test_one_taken_while_the_averages_are_in_the_model_by_hand_is_whole(self) -> None:
        class Odd(nn.Linear):
            def get_extra_state(self) -> dict[str, int]:
                return {"seen": 3}

            def set_extra_state(self, state: dict[str, int]) -> None:
                pass

        model, hook = Odd(1, 1), halving()
        bus = HookBus([hook])
        with bus.run(model=model) as run:
            list(set_weights(run, model, [1, 2]))
            expected = fingerprint(model.state_dict())
            with hook.applied():
                assert fingerprint(run.weights.raw()) == expected

    def test_what_is_in_a_file_does_not_change_with_the_training(self, tmp_path: Path) -> None:
        count_up(halving(), Saver(1), batches=9, work_dir=tmp_path)
        checkpoint = read_checkpoint(tmp_path / "checkpoints/iter_1.pth")

        assert weight_in(checkpoint["ema_state_dict"]) == 0.5
        assert weight_in(checkpoint["hooks"]["ema"]["state"]["averaged"]) == 0.5

    @pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
    def test_names_are_those_of_the_model_inside_wrappers(self, wrap: Callable[[nn.Module], Any]) -> None:
        model, hook = one_weight(), halving()
        bus = HookBus([hook])
        with bus.run(model=wrap(model)) as run:
            list(set_weights(run, model, [1]))

        assert {name: value.item() for name, value in (hook.averaged() or {}).items()} == {"weight": 0.5}
        with hook.applied():
            assert model.weight.item() == 0.5


class TestResume:
    @pytest.mark.parametrize("loop", [by_trainer, by_hand])
    @pytest.mark.parametrize(
        ("settings", "iteration"),
        [({}, 7), ({"interval": 3}, 8), ({"update_buffers": True}, 5), ({"overlap": True}, 7), ({"device": "cpu"}, 10)],
    )
    def test_a_resumed_run_is_the_one_that_was_never_interrupted(
        self, loop: Callable[..., nn.Module], settings: dict[str, Any], iteration: int, tmp_path: Path
    ) -> None:
        straight, resumed = (EMAHook(momentum=0.9, warm_up=5, **settings) for _ in range(2))
        whole = loop(straight, Saver(iteration), work_dir=tmp_path / "a")
        file = tmp_path / "a" / f"checkpoints/iter_{iteration}.pth"
        rest = loop(resumed, Saver(), work_dir=tmp_path / "b", resume=file)

        assert fingerprint(rest.state_dict()) == fingerprint(whole.state_dict())
        assert fingerprint(resumed.state_dict()) == fingerprint(straight.state_dict())
        assert not torch.equal(resumed.averaged()["0.weight"], whole.state_dict()["0.weight"])  # type: ignore[index]

    def test_raw_and_averaged_weights_come_back_apart(self, tmp_path: Path) -> None:
        count_up(halving(), Saver(4), work_dir=tmp_path / "a")
        watch = Watch()
        file = tmp_path / "a/checkpoints/iter_4.pth"
        count_up(halving(), watch, batches=4, epochs=2, work_dir=tmp_path / "b", resume=file)

        assert (watch.raw[0], watch.averages[0]) == (5, 4.03125)

    def test_a_test_of_a_file_sees_its_averages(self, tmp_path: Path) -> None:
        class Look(Hook):
            judged: float

            def before_test(self, model: nn.Module) -> None:
                self.judged = weight_in(model.state_dict())

        count_up(halving(), Saver(4), work_dir=tmp_path)
        look, model = Look(), Upwards()
        Trainer(
            model,
            test_loader=ONES,
            hooks=[halving(), look],
            default_hooks=False,
            device="cpu",
            work_dir=None,
            resume=tmp_path / "checkpoints/iter_4.pth",
        ).test()

        assert look.judged == 3.0625
        assert model.weight.item() == 4

    def test_a_checkpoint_without_averages_is_reported_and_the_average_starts_at_its_weights(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        count_up(Saver(4), work_dir=tmp_path / "a")
        watch = Watch()
        file = tmp_path / "a/checkpoints/iter_4.pth"
        count_up(EMAHook(momentum=0.9, warm_up=9), watch, epochs=2, work_dir=None, resume=file)

        assert "The checkpoint holds no state of hook 'ema': it starts afresh." in caplog.messages
        assert watch.averages[0] == pytest.approx(0.2 * 4 + 0.8 * 5)

    def test_averages_of_another_model_are_refused(self, tmp_path: Path) -> None:
        class Edit(Hook):
            def after_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
                averages = checkpoint["hooks"]["ema"]["state"]["averaged"]
                averages["gewicht"] = averages.pop("weight")

        count_up(halving(), Saver(4), work_dir=tmp_path)
        model, file = Upwards(), tmp_path / "checkpoints/iter_4.pth"
        with pytest.raises(CheckpointError, match="hook 'ema': The averages are not .* shape: weight, gewicht"):
            count_up(halving(), Edit(), model=model, epochs=2, resume=file)
        assert model.weight.item() == 4

    def test_a_second_training_goes_on_and_a_fresh_one_does_not(self) -> None:
        hook, model = halving(), one_weight()
        assert averages_of(hook, model, [1, 2]) == [0.5, 1.25]
        assert averages_of(hook, model, [3, 4]) == [2.125, 3.0625]
        assert averages_of(hook, model, [2], fresh=True) == [3]

    def test_a_second_training_of_a_rebuilt_model_goes_on_with_its_averages(self) -> None:
        hook, model = halving(), one_weight()
        assert averages_of(hook, one_weight(), [1, 2]) == [0.5, 1.25]
        assert averages_of(hook, model, [3, 4]) == [2.125, 3.0625]
        with hook.applied():
            assert model.weight.item() == 3.0625

    def test_a_state_that_was_loaded_by_hand_is_used_by_the_next_run(self) -> None:
        hook = halving()
        hook.load_state_dict({"steps": 4, "averaged": {"weight": torch.full((1, 1), 3.0625)}, "begun_at": 0})
        assert weight_in(hook.state_dict()["averaged"]) == 3.0625
        assert averages_of(hook, one_weight(4), [5]) == [4.03125]

    def test_a_state_from_before_training_is_nothing_to_go_on_from(self) -> None:
        hook = halving()
        assert averages_of(hook, one_weight(), [1]) == [0.5]
        hook.load_state_dict(halving().state_dict())

        assert hook.averaged() is None
        assert averages_of(hook, one_weight(4), [5]) == [4.5]


class TestStartingFromOthers:
    def test_weights_from_a_file_are_where_the_average_starts(self, tmp_path: Path) -> None:
        count_up(halving(), Saver(4), work_dir=tmp_path)
        file = tmp_path / "checkpoints/iter_4.pth"
        for which, raw, average in (("raw", 5, 4.5), ("averaged", 4.0625, 3.5625)):
            watch = Watch()
            count_up(halving(), watch, load_from=file, load_weights=which)
            assert (watch.raw[0], watch.averages[0]) == (raw, average)

    def test_a_new_head_is_averaged_from_its_fresh_weights(self, tmp_path: Path) -> None:
        """Three classes in the file, five in the model, and a buffer in the file that the model has not."""
        old = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 3)})
        new = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 5)})
        old.register_buffer("count", torch.ones(1))
        torch.save(old.state_dict(), tmp_path / "old.pth")
        head, watched = fingerprint(new["head"].state_dict()), EMAHook()
        with pytest.warns(HookWarning, match="no sidecar"):
            count_up(watched, model=new, epochs=0, load_from=tmp_path / "old.pth", load_strict=False)

        averages = watched.averaged()
        assert averages is not None
        assert torch.equal(averages["body.weight"], old["body"].weight)
        assert fingerprint(new["head"].state_dict()) == head
        assert fingerprint(averages) == fingerprint(new.state_dict())

    def test_resume_from_goes_on_with_the_averages_of_a_file_in_a_new_run(self, tmp_path: Path) -> None:
        count_up(EMAHook(momentum=0.9, warm_up=10), Saver(4), work_dir=tmp_path)
        file = tmp_path / "checkpoints/iter_4.pth"
        start, watch = weight_in(read_checkpoint(file)["ema_state_dict"]), Watch()
        count_up(EMAHook(momentum=0.9, warm_up=10, resume_from=str(file)), watch)

        share = 6 / 15  # the warm-up is at its fifth step
        assert watch.raw[0] == 1
        assert watch.averages[0] == pytest.approx(share * start + (1 - share) * 1)

    def test_a_run_that_started_so_resumes_exactly(self, tmp_path: Path) -> None:
        count_up(EMAHook(momentum=0.9, warm_up=10), Saver(4), work_dir=tmp_path / "first")
        settings = {"momentum": 0.9, "warm_up": 10, "resume_from": str(tmp_path / "first/checkpoints/iter_4.pth")}
        whole, rest = Watch(), Watch()
        count_up(EMAHook(settings), Saver(2), whole, work_dir=tmp_path / "whole")
        file = tmp_path / "whole/checkpoints/iter_2.pth"
        count_up(EMAHook(settings), Saver(), rest, work_dir=tmp_path / "rest", resume=file)

        assert rest.averages == whole.averages[2:]

    def test_a_resumed_run_goes_on_with_its_own_averages_instead(self, tmp_path: Path) -> None:
        count_up(halving(), Saver(4), work_dir=tmp_path / "a")
        file = tmp_path / "a/checkpoints/iter_4.pth"
        watch, other = Watch(), tmp_path / "nowhere.pth"
        count_up(halving(resume_from=str(other)), watch, epochs=2, resume=file)

        assert watch.averages[0] == 4.03125

    def test_a_file_that_is_not_there_is_refused_before_training(self, tmp_path: Path) -> None:
        model = Upwards()
        with pytest.raises(CheckpointError, match=r"nowhere\.pth: there is no such file"):
            count_up(EMAHook(resume_from=str(tmp_path / "nowhere.pth")), model=model)
        assert model.weight.item() == 0


class TestOverlap:
    def test_no_update_is_running_when_the_weights_change_or_the_run_is_over(self) -> None:
        running: list[bool] = []

        class Look(Hook):
            priority = 41

            def before_optimizer_step(self) -> None:
                running.append(pending(hook))

            def after_train_iter(self) -> None:
                running.append(pending(hook))

        hook = halving(overlap=True)
        count_up(hook, Look(), batches=2)

        assert running == [False, True, False, True]
        assert not pending(hook)


def pending(hook: EMAHook) -> bool:
    return getattr(hook.average, "_running", None) is not None


def test_two_averages_of_one_run_are_refused() -> None:
    with pytest.raises(HookError, match="one run has one average"):
        fake_training([EMAHook(name="a"), EMAHook(name="b")])
