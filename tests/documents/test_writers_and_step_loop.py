"""Writers, the points of a loop that counts steps, and a hook that logs losses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn import functional
from torch.utils.tensorboard import SummaryWriter

import hookbus
from hookbus import Hook, HookBus, Run, Writer, WriterHook, build_hook, get_default_hooks, load_config
from hookbus.testing import RecordingBus, fake_training
from hookbus_tensorboard.writer import TensorBoardWriter
from tests.toys import pairs, trainer

from .toys import LossModel, Recorder, restored_registry


class ListWriter(Writer):
    """Writer that appends its records to a list."""

    def __init__(self, records: list[Any]) -> None:
        self.records = records

    def write_scalar(self, name: str, value: Any, step: int) -> None:
        self.records.append(("scalar", name, value, step))

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        self.records.append(("image", name, tuple(image.shape), step))

    def write_config(self, config: Mapping[str, Any]) -> None:
        self.records.append(("config", dict(config)))


class ListHook(WriterHook):
    """Hook of `ListWriter`."""

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.records: list[Any] = []

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        return lambda: ListWriter(self.records)


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    with restored_registry():
        yield


RECORDS: list[Any] = []


class ModuleWriter(ListWriter):
    """Writer that is named in a configuration."""

    def __init__(self) -> None:
        super().__init__(RECORDS)


@pytest.fixture
def writer_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    module = ModuleType("own_writers")
    module.ModuleWriter = ModuleWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_writers", module)
    monkeypatch.setattr(ModuleWriter, "__module__", "own_writers")
    yield "own_writers:ModuleWriter"
    RECORDS.clear()


class TestDefaultHooks:
    @pytest.mark.parametrize("name", ["checkpoint", "logger", "progress"])
    def test_hook_is_registered_by_default(self, name: str) -> None:
        hooks = {hook.name: hook for hook in get_default_hooks()}
        assert isinstance(hooks[name], Hook)

    def test_checkpoints_are_saved_during_the_loop(self, tmp_path: Path) -> None:
        fake_training([build_hook("checkpoint")], work_dir=tmp_path)
        assert {path.name for path in (tmp_path / "checkpoints").glob("*.pth")} == {
            "epoch_1.pth",
            "epoch_2.pth",
            "last.pth",
        }

    @pytest.mark.parametrize(("stage", "text"), [("train", "loss 2"), ("val", "loss 0.5")])
    def test_losses_are_printed_on_the_terminal(
        self, capsys: pytest.CaptureFixture[str], stage: str, text: str
    ) -> None:
        hook = build_hook({"type": "logger", "interval": 3})
        fake_training([hook], epochs=1, losses=float, scores=lambda epoch: {"loss": 0.5})
        output = capsys.readouterr()
        lines = [line for line in (output.out + output.err).splitlines() if stage in line]
        assert any(text in line for line in lines)

    def test_progress_of_the_epoch_is_visualized(self) -> None:
        hook, seen = build_hook("progress"), []

        class Look(Hook):
            def after_train_iter(self, run: Run) -> None:
                state = hook.get_progress(run)
                seen.append((state.label, state.done, state.total))

        fake_training([hook, Look()], epochs=2, batches=2)
        assert seen[-2:] == [("epoch 2/2", 1, 2), ("epoch 2/2", 2, 2)]


class TestWriters:
    @pytest.mark.parametrize("method", ["write_scalar", "write_image", "write_config"])
    def test_writer_without_an_abstract_method_cannot_be_created(self, method: str) -> None:
        body = {name: lambda self: None for name in ("write_scalar", "write_image", "write_config") if name != method}
        with pytest.raises(TypeError, match=method):
            type("Incomplete", (Writer,), body)()

    def test_only_three_methods_are_abstract(self) -> None:
        assert Writer.__abstractmethods__ == {"write_scalar", "write_image", "write_config"}

    @pytest.mark.parametrize(
        "record",
        [
            ("scalar", "train/loss", 2.0, 3),  # the mean of 1, 2 and 3
            ("scalar", "psnr", 31.5, 1),
            ("image", "render", (8, 8, 3), 1),
            ("config", {"max_steps": 3}),
        ],
        ids=["loss of training", "scalar", "image", "config"],
    )
    def test_own_writer_receives_the_record(self, tmp_path: Path, record: Any) -> None:
        class Render(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.steps_done == 1:
                    run.require("writer").write_scalar("psnr", torch.tensor(31.5))
                    run.require("writer").write_image("render", torch.zeros(8, 8, 3))

        hook = ListHook(interval=3)
        fake_training([hook, Render()], epochs=1, losses=float, work_dir=tmp_path, config={"max_steps": 3})
        assert record in hook.records

    @pytest.mark.parametrize(
        ("method", "arguments", "point", "expected"),
        [
            ("write_scalar", ("loss", 0.5, 7), "log_scalars", {"values": {"loss": 0.5}, "step": 7}),
            ("write_image", ("render", "pixels", 7), "log_images", {"tag": "render", "images": "pixels", "step": 7}),
            ("write_config", ({"lr": 0.1},), "log_config", {"config": {"lr": 0.1}}),
        ],
        ids=["scalar", "image", "config"],
    )
    def test_writer_of_the_run_passes_records_to_all_hooks(
        self, method: str, arguments: Any, point: str, expected: Any
    ) -> None:
        bus = RecordingBus()
        with bus.run(iterations=1) as run:
            assert isinstance(run.require("writer"), Writer)
            bus.events.clear()
            getattr(run.require("writer"), method)(*arguments)
        (received,) = bus.get_arguments(point)[:1]
        assert {name: received[name] for name in expected} == expected

    def test_two_writers_receive_the_same_records(self, tmp_path: Path) -> None:
        first, second = ListHook(interval=1, name="first"), ListHook(interval=1, name="second")
        fake_training([first, second], epochs=1, losses=float, work_dir=tmp_path)
        assert first.records == second.records
        assert ("scalar", "train/loss", 3.0, 3) in first.records


class TestOwnWriterInAConfiguration:
    def test_writer_class_named_as_type_receives_the_records(self, writer_module: str, tmp_path: Path) -> None:
        hook = build_hook({"type": writer_module})
        fake_training([hook], epochs=1, losses=float, work_dir=tmp_path)
        assert ("scalar", "train/loss", 2.0, 3) in RECORDS

    def test_writer_class_is_accepted_in_the_list_of_hooks(self, writer_module: str) -> None:
        hooks = load_config({"hooks": [{"type": writer_module}], "default_hooks": False}).build_valid_hooks()
        assert len(hooks) == 1


class TestTensorBoard:
    @pytest.fixture
    def events(self, tmp_path: Path) -> Any:
        writer = TensorBoardWriter(tmp_path)
        writer.write_scalar("loss", 0.5, 3)
        writer.write_image("render", torch.zeros(2, 2, 3, dtype=torch.uint8), 3)
        writer.close()
        return EventAccumulator(str(tmp_path), size_guidance={"tensors": 0}).Reload()

    def test_writer_wraps_the_summary_writer(self, tmp_path: Path) -> None:
        writer = TensorBoardWriter(tmp_path)
        assert isinstance(writer, Writer)
        assert isinstance(writer._summary_writer, SummaryWriter)
        writer.close()

    def test_scalar_is_written_with_its_step(self, events: Any) -> None:
        assert [(event.step, event.value) for event in events.Scalars("loss")] == [(3, 0.5)]

    def test_image_is_written_with_its_size(self, events: Any) -> None:
        assert [(event.step, event.width, event.height) for event in events.Images("render")] == [(3, 2, 2)]

    def test_configuration_of_the_run_is_written_as_text(self, tmp_path: Path) -> None:
        fake_training([build_hook("tensorboard")], epochs=1, work_dir=tmp_path, config={"max_steps": 7})
        directory = str(tmp_path / "logs" / "tensorboard")
        (event,) = EventAccumulator(directory, size_guidance={"tensors": 0}).Reload().Tensors("config/text_summary")
        assert '"max_steps": 7' in event.tensor_proto.string_val[0].decode()

    def test_type_of_the_writer_is_named_in_a_configuration(self, tmp_path: Path) -> None:
        fake_training([build_hook({"type": "tensorboard", "interval": 1})], epochs=1, work_dir=tmp_path)
        assert len(list((tmp_path / "logs" / "tensorboard").glob("events.*"))) == 1


LOOP = [
    "before_run",
    "before_train",
    *["before_train_iter", "after_train_iter"] * 2,
    *["before_val", "before_val_iter", "after_val_iter", "before_val_iter", "after_val_iter", "after_val"],
    *["before_train_iter", "after_train_iter"] * 2,
    *["before_val", "before_val_iter", "after_val_iter", "before_val_iter", "after_val_iter", "after_val"],
    "after_train",
]
"""Events of four steps with a validation on two samples after every second one."""


class StepTrainer:
    """Loop that counts steps, and calls its hooks through a method."""

    def __init__(self, hooks: list[object], max_steps: int = 4, val_interval: int = 2) -> None:
        self.max_steps, self.val_interval = max_steps, val_interval
        self.bus = RecordingBus(hooks)
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.train_batches, self.val_batches = pairs(max_steps), pairs(2)

    def call_hook(self, fn_name: Any, **kwargs: Any) -> None:
        self.bus.emit(fn_name, **kwargs)

    @torch.no_grad()
    def validation(self) -> None:
        for batch in self.val_batches:
            self.call_hook("before_val_iter")
            self.metric_dict = {"loss": functional.cross_entropy(self.model(batch[0]), batch[1])}
            self.call_hook("after_val_iter")

    def train_loop(self) -> None:
        with self.bus.run(model=self.model, optimizer=self.optimizer, iterations=self.max_steps):
            self.call_hook("before_train")
            for iteration in range(1, self.max_steps + 1):
                self.call_hook("before_train_iter")
                inputs, targets = self.train_batches[iteration - 1]
                self.optimizer.zero_grad()
                loss = functional.cross_entropy(self.model(inputs), targets)
                loss.backward()
                self.optimizer.step()
                self.call_hook("after_train_iter", outputs={"loss": loss})
                if iteration % self.val_interval == 0 or iteration == self.max_steps:
                    self.call_hook("before_val")
                    self.validation()
                    self.call_hook("after_val")
            self.call_hook("after_train")


class TestStepLoop:
    def test_events_are_those_of_the_loop(self) -> None:
        loop = StepTrainer([])
        loop.train_loop()
        # The optimizer reports its steps itself.
        points = [point for point in loop.bus.emitted_points if not point.endswith("optimizer_step")]
        assert points == [*LOOP, "after_run", "cleanup"]

    @pytest.mark.parametrize("point", sorted(set(LOOP)))
    def test_hook_is_called_by_the_loop_as_often_as_the_point_is_reached(self, point: str) -> None:
        calls: list[str] = []

        class Counter(Hook):
            pass

        setattr(Counter, point, lambda self: calls.append(point))
        StepTrainer([Counter()]).train_loop()
        assert len(calls) == LOOP.count(point)

    def test_validation_follows_every_interval_and_the_last_step(self) -> None:
        steps = []

        class StepRecorder(Hook):
            def before_val(self, run: Run) -> None:
                steps.append(run.global_step)

        StepTrainer([StepRecorder()], max_steps=5).train_loop()
        assert steps == [2, 4, 5]

    def test_hooks_are_called_in_the_order_of_their_list(self) -> None:
        calls: list[str] = []

        class Named(Hook):
            def before_train(self) -> None:
                calls.append(self.name)

        StepTrainer([Named(name="a"), Named(name="b")]).train_loop()
        assert calls == ["a", "b"]

    def test_hook_without_the_method_is_not_called(self) -> None:
        class Silent(Hook):
            def before_test(self) -> None:
                raise AssertionError

        loop = StepTrainer([Silent()])
        loop.train_loop()
        assert loop.bus.calls_made == []

    def test_further_point_of_the_user_is_called_with_its_arguments(self) -> None:
        received = []

        class Renderer(Hook):
            def after_render(self, run: Run, image: Any) -> None:
                received.append((run.iters_done, image))

        bus = HookBus()
        bus.declare("after_render", args=("image",))
        bus.register(Renderer())
        with bus.run(iterations=1):
            bus.emit("after_render", image="pixels")
        assert received == [(0, "pixels")]

    def test_type_error_of_a_hook_names_the_hook(self) -> None:
        class Faulty(Hook):
            def before_train(self) -> None:
                raise TypeError("no number")

        with pytest.raises(TypeError, match="no number") as caught:
            StepTrainer([Faulty()]).train_loop()
        assert any("faulty" in note for note in caught.value.__notes__)

    @pytest.mark.parametrize(("steps", "expected"), [(4, [2, 4]), (5, [2, 4, 5])])
    def test_trainer_validates_at_the_interval_and_at_the_last_step_too(self, steps: int, expected: list[int]) -> None:
        validated = []

        class StepRecorder(Hook):
            def after_val(self, run: Run) -> None:
                validated.append(run.global_step)

        hook = build_hook({"type": "eval", "interval": 2, "by_epoch": False})
        loaders = {"train_loader": pairs(5), "val_loader": pairs(2)}
        trainer(hook, StepRecorder(), **loaders, metrics=["accuracy"], iterations=steps).fit()
        assert validated == expected


class SplatModel(LossModel):
    """Model with a list of points, one of whose parameter groups is named."""

    def __init__(self) -> None:
        super().__init__()
        self.point_cloud = [0, 1, 2, 3, 4]


def build_splat_trainer(*hooks: object) -> Any:
    """Return a trainer of three iterations with the losses 1, 2 and 4."""
    model = SplatModel()
    groups = [{"params": model.parameters(), "name": "point_cloud.position", "lr": 0.25}]
    loader = [torch.tensor([value]) for value in (1.0, 2.0, 4.0)]
    options = {"optimizer": torch.optim.SGD(groups), "loss_fn": None, "train_loader": loader, "iterations": 3}
    return trainer(*hooks, model=model, **options)


class TestAccessToTheTrainer:
    def test_run_gives_access_to_the_whole_trainer(self) -> None:
        seen = []

        class Look(Hook):
            def after_train_iter(self, run: Run) -> None:
                seen.append(run.trainer)

        loop = build_splat_trainer(Look())
        loop.fit()
        assert seen == [loop] * 3

    @pytest.mark.parametrize(
        ("read", "values"),
        [
            (lambda run: len(run.model.point_cloud), [5, 5, 5]),
            (lambda run: run.optimizer.param_groups[0]["name"], ["point_cloud.position"] * 3),
            (lambda run: run.optimizer.param_groups[0]["lr"], [0.25] * 3),
            (lambda run: run.global_step, [1, 2, 3]),
        ],
        ids=["size of the model", "name of the parameter group", "learning rate", "global step"],
    )
    def test_part_of_the_trainer_is_an_attribute_of_the_run(self, read: Callable[[Any], Any], values: Any) -> None:
        seen = []

        class Look(Hook):
            def after_train_iter(self, run: Run) -> None:
                seen.append(read(run))

        build_splat_trainer(Look()).fit()
        assert seen == values

    def test_hook_changes_the_course_of_the_training(self) -> None:
        class Stop(Hook):
            def after_train_iter(self, run: Run) -> None:
                run.request_stop("enough")

        run = build_splat_trainer(Stop()).fit()
        assert (run.outcome, run.iters_done) == ("stopped", 1)

    def test_hook_without_a_call_of_the_base_constructor_works(self) -> None:
        class Smooth(Hook):
            def __init__(self) -> None:
                self.ema_loss = 0.0

            def after_train_iter(self, outputs: Any) -> None:
                self.ema_loss = 0.4 * float(outputs["loss"]) + 0.6 * self.ema_loss

        hook = Smooth()
        build_splat_trainer(hook).fit()
        assert hook.ema_loss == pytest.approx(0.4 * 4 + 0.6 * (0.4 * 2 + 0.6 * 0.4))  # 2.224
        assert f"{hook.ema_loss:.{7}f}" == "2.2240000"

    def test_values_are_logged_with_the_step_of_each_iteration(self) -> None:
        class Log(Hook):
            def after_train_iter(self, run: Run) -> None:
                run.require("writer").write_scalar("num_pt", len(run.model.point_cloud), run.global_step)

        recorder = Recorder()
        build_splat_trainer(Log(), recorder).fit()
        assert recorder.get_curve("num_pt") == [(1, 5.0), (2, 5.0), (3, 5.0)]


class TestMethodsOfTheTrainer:
    def test_call_hook_calls_the_method_of_every_hook(self) -> None:
        received = []

        class Look(Hook):
            def before_train_iter(self, batch_idx: int) -> None:
                received.append((self.name, batch_idx))

        trainer(Look(name="a"), Look(name="b")).call_hook("before_train_iter", batch_idx=3)
        assert received == [("a", 3), ("b", 3)]

    def test_call_hook_calls_a_point_that_the_user_declared(self) -> None:
        received = []

        class Renderer(Hook):
            def after_render(self, image: Any) -> None:
                received.append(image)

        loop = trainer()
        loop.bus.declare("after_render", args=("image",))
        loop.register_hook(Renderer())
        loop.call_hook("after_render", image="pixels")
        assert received == ["pixels"]

    def test_writer_is_an_attribute_of_the_trainer(self) -> None:
        class Log(Hook):
            def after_train_iter(self, run: Run) -> None:
                run.trainer.writer.write_scalar("num_pt", 5, run.global_step)

        recorder = Recorder()
        build_splat_trainer(Log(), recorder).fit()
        assert recorder.get_curve("num_pt") == [(1, 5.0), (2, 5.0), (3, 5.0)]

    def test_logger_of_the_run_writes_scalars(self) -> None:
        class Log(Hook):
            def after_train_iter(self, run: Run) -> None:
                run.logger.write_scalar("num_pt", 5, run.global_step)

        recorder = Recorder()
        build_splat_trainer(Log(), recorder).fit()
        assert recorder.get_curve("num_pt") == [(1, 5.0), (2, 5.0), (3, 5.0)]

    def test_losses_of_the_iteration_are_a_dictionary(self) -> None:
        losses = []

        class Look(Hook):
            def after_train_iter(self, run: Run) -> None:
                losses.append({name: float(value) for name, value in run.loss_dict.items()})

        build_splat_trainer(Look()).fit()
        assert losses == [{"loss": 1.0}, {"loss": 2.0}, {"loss": 4.0}]


@pytest.mark.parametrize("name", ["trainer", "trainner"])
def test_first_argument_with_another_name_is_the_run(name: str) -> None:
    received: list[Any] = []
    namespace: dict[str, Any] = {"received": received}
    exec(f"def after_train_iter(self, {name}): received.append({name})", namespace)
    hook = type("Look", (Hook,), {"after_train_iter": namespace["after_train_iter"]})()
    run = build_splat_trainer(hook).fit()
    assert received == [run] * 3


def define_log_hook() -> type[Hook]:
    """Define a hook that logs the losses, in the style of a loop that counts steps."""
    HOOK_REGISTRY = hookbus.HOOK_REGISTRY  # noqa: N806

    @HOOK_REGISTRY.register()
    class LossLogHook(Hook):
        def __init__(self):
            self.ema_loss_for_log = 0.0
            self.bar_info = {}
            self.losses_test = {"L1_loss": 0.0, "psnr": 0.0, "ssims": 0.0, "lpips": 0.0}

        def after_train_iter(self, trainner) -> None:
            for param_group in trainner.optimizer.param_groups:
                name = param_group["name"]
                if name == "point_cloud." + "position":
                    pos_lr = param_group["lr"]
                    break

            log_dict = {"num_pt": len(trainner.model.point_cloud), "pos_lr": pos_lr}
            log_dict.update(trainner.loss_dict)

            for key, value in log_dict.items():
                if key == "loss":
                    self.ema_loss_for_log = 0.4 * value.item() + 0.6 * self.ema_loss_for_log
                    self.bar_info.update({key: f"{self.ema_loss_for_log:.{7}f}"})

                if trainner.logger and key != "optimizer_params":
                    trainner.logger.write_scalar(key, value, trainner.global_step)

    return LossLogHook


class TestExampleOfALogHook:
    @pytest.fixture
    def result(self) -> tuple[Any, Recorder]:
        define_log_hook()
        hook, recorder = build_hook({"type": "LossLogHook"}), Recorder()
        build_splat_trainer(hook, recorder).fit()
        return hook, recorder

    def test_smoothed_loss_is_formatted_for_the_progress_bar(self, result: Any) -> None:
        assert result[0].bar_info == {"loss": "2.2240000"}

    @pytest.mark.parametrize(
        ("key", "values"), [("num_pt", [5, 5, 5]), ("pos_lr", [0.25] * 3), ("loss", [1.0, 2.0, 4.0])]
    )
    def test_value_is_logged_at_each_step(self, result: Any, key: str, values: Any) -> None:
        assert result[1].get_curve(key) == list(zip([1, 2, 3], values, strict=True))
