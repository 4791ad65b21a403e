"""Hooks for detectors, their names and effects, and a hook of the user's own that stops at an invalid loss."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from hookbus import HOOKS, Hook, Run, build_hook, build_hooks, load_config
from hookbus.errors import ConfigError, HookError, LoopError
from hookbus.testing import fake_training, fingerprint
from tests.toys import Saver, net, pairs, trainer

from .toys import LossModel, Recorder, restored_registry

NAN = float("nan")
NAMES = {
    "check_invalid_loss": "CheckInvalidLossHook",
    "num_class_check": "NumClassCheckHook",
    "memory_profiler": "MemoryProfilerHook",
    "set_epoch_info": "SetEpochInfoHook",
    "sync_norm": "SyncNormHook",
    "sync_random_size": "SyncRandomSizeHook",
    "yolox_lr": "YOLOXLrUpdaterHook",
    "yolox_mode_switch": "YOLOXModeSwitchHook",
}


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    with restored_registry():
        yield


@pytest.mark.parametrize(("entry_point", "class_name"), NAMES.items(), ids=list(NAMES))
def test_entry_point_builds_the_class(entry_point: str, class_name: str) -> None:
    assert type(build_hook({"type": entry_point})).__name__ == class_name


@pytest.mark.parametrize(("class_name", "entry_point"), [(v, k) for k, v in NAMES.items()], ids=list(NAMES.values()))
def test_class_name_builds_the_hook_of_the_entry_point(class_name: str, entry_point: str) -> None:
    assert build_hook({"type": class_name}).name == entry_point


class TestInvalidLoss:
    def test_invalid_loss_ends_the_run_at_the_checked_iteration(self) -> None:
        hook = build_hook({"type": "CheckInvalidLossHook", "interval": 2})
        with pytest.raises(LoopError, match="loss is not finite at iteration 4, epoch 2"):
            fake_training([hook], losses=lambda iteration: NAN if iteration >= 3 else 1.0)

    def test_default_interval_is_fifty_iterations(self) -> None:
        hook = build_hook({"type": "CheckInvalidLossHook"})
        with pytest.raises(LoopError, match="at iteration 50, epoch 1"):
            fake_training([hook], batches=60, epochs=1, losses=lambda iteration: NAN if iteration > 10 else 1.0)

    def test_infinite_loss_is_invalid_too(self) -> None:
        hook = build_hook({"type": "CheckInvalidLossHook", "interval": 1})
        with pytest.raises(LoopError, match="at iteration 1"):
            fake_training([hook], losses=lambda iteration: float("inf"))

    def test_finite_losses_change_nothing(self) -> None:
        hook = build_hook({"type": "CheckInvalidLossHook", "interval": 1})
        assert fingerprint(fake_training([hook]).model.state_dict()) == fingerprint(fake_training().model.state_dict())


class Labeled(Dataset[Any]):
    """Two samples of a number of classes."""

    def __init__(self, count: int) -> None:
        self.classes = [f"class {i}" for i in range(count)]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return torch.ones(4), index


class Detector(nn.Module):
    """Model with a head of three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.head.num_classes = 3  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


class TestClassCounts:
    @pytest.mark.parametrize("mode", ["train", "val", "test"])
    def test_dataset_with_another_number_of_classes_is_refused(self, mode: str) -> None:
        loaders = {"train_loader": DataLoader(Labeled(3)), f"{mode}_loader": DataLoader(Labeled(2))}
        message = rf"the {mode} data \(Labeled\) has 2 classes, but head .* num_classes 3"
        with pytest.raises(ConfigError, match=message):
            trainer(build_hook({"type": "NumClassCheckHook"}), model=Detector(), **loaders, epochs=1).fit()

    def test_equal_numbers_pass(self) -> None:
        hook = build_hook({"type": "NumClassCheckHook"})
        run = trainer(hook, model=Detector(), train_loader=DataLoader(Labeled(3)), epochs=1).fit()
        assert run.outcome == "finished"


MB = 2**20


class TestMemory:
    @pytest.fixture
    def lines(self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Lines of a run of ten iterations on a system of known size."""
        memory = SimpleNamespace(total=1000 * MB, available=750 * MB, used=250 * MB, percent=25.0)
        swap = SimpleNamespace(total=400 * MB, free=300 * MB, used=100 * MB, percent=25.0)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
        monkeypatch.setattr(psutil, "swap_memory", lambda: swap)
        monkeypatch.setattr(psutil.Process, "memory_info", lambda self: SimpleNamespace(rss=64 * MB))
        caplog.set_level("INFO", "hookbus")
        (hook,) = build_hooks([{"type": "MemoryProfilerHook", "interval": 5}])
        fake_training([hook], epochs=1, batches=10)
        return [record.getMessage() for record in caplog.records]

    def test_memory_is_logged_every_interval_iterations(self, lines: list[str]) -> None:
        assert sum(line.startswith("The system has ") for line in lines) == 2

    def test_sentence_names_memory_swap_and_process(self, lines: list[str]) -> None:
        sentence = next(line for line in lines if line.startswith("The system has "))
        # A container may limit the swap space, so its numbers depend on the machine.
        pattern = (
            r"The system has 1 GB \(750 MB \+ 250 MB\) of memory and \d+ GB \(\d+ MB \+ \d+ MB\) of swap memory in "
            r"total\. Currently 250 MB \(25\.0%\) of memory and \d+ MB \(\d+\.\d%\) of swap memory were consumed\. "
            r"And the current training process consumed 64 MB of memory\."
        )
        assert re.fullmatch(pattern, sentence)

    @pytest.mark.parametrize(
        ("field", "pattern"),
        [
            ("available_memory", "750 MB"),
            ("used_memory", "250 MB"),
            ("memory_utilization", r"25\.0 %"),
            ("available_swap_memory", r"\d+ MB"),
            ("used_swap_memory", r"\d+ MB"),
            ("swap_memory_utilization", r"\d+\.\d %"),
            ("current_process_memory", "64 MB"),
        ],
    )
    def test_line_of_fields_contains_the_field(self, lines: list[str], field: str, pattern: str) -> None:
        line = next(line for line in lines if line.startswith("Memory information "))
        fields = dict(part.split(": ") for part in line.removeprefix("Memory information ").split(", "))
        assert len(fields) == 7
        assert re.fullmatch(pattern, fields[field])

    def test_line_of_fields_is_logged_at_level_info(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "hookbus")
        fake_training([build_hook({"type": "MemoryProfilerHook", "interval": 1})], epochs=1, batches=1)
        levels = {record.levelname for record in caplog.records if record.getMessage().startswith("Memory information")}
        assert levels == {"INFO"}

    def test_values_are_logged_as_scalars_too(self) -> None:
        recorder = Recorder()
        fake_training([build_hook({"type": "MemoryProfilerHook", "interval": 3}), recorder], epochs=1)
        ((step, size),) = recorder.get_curve("memory/process_gb")
        assert step == 3
        assert 0 < size < 1000

    def test_default_interval_is_fifty(self) -> None:
        assert build_hook({"type": "MemoryProfilerHook"}).config.interval == 50

    def test_key_of_another_framework_for_the_list_is_refused_with_the_right_key(self) -> None:
        # The list of a run file is called `hooks`.
        entry = {"type": "MemoryProfilerHook", "interval": 50}
        with pytest.raises(ConfigError, match="custom_hooks.*['`]hooks"):
            load_config({"custom_hooks": [entry]})
        assert load_config({"hooks": [entry]}).hooks == [entry]


class TestEpochOfTheModel:
    def test_model_receives_the_index_of_each_epoch(self) -> None:
        epochs = []

        class Aware(nn.Linear):
            def set_epoch(self, epoch: int) -> None:
                epochs.append(epoch)

        trainer(build_hook({"type": "SetEpochInfoHook"}), model=Aware(4, 2), epochs=3).fit()
        assert epochs == [0, 1, 2]

    def test_model_without_the_method_is_refused(self) -> None:
        with pytest.raises(HookError, match=r"requires a model with a method set_epoch\(epoch\)"):
            trainer(build_hook({"type": "SetEpochInfoHook"}), epochs=1).fit()


class TestNormalizationLayers:
    def test_state_of_normalization_layers_is_synchronized(self) -> None:
        hook = build_hook({"type": "SyncNormHook"})
        model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
        names = ["1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"]
        assert list(hook.get_tensors(model)) == names

    def test_points_are_the_end_of_an_epoch_and_the_start_of_evaluations(self) -> None:
        stages = ["before_run", "after_train_epoch", "before_val", "before_test"]
        assert build_hook({"type": "SyncNormHook"}).get_triggered_stages() == stages

    def test_single_process_is_not_changed(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "hookbus")
        hook = build_hook({"type": "SyncNormHook"})
        assert fingerprint(fake_training([hook]).model.state_dict()) == fingerprint(fake_training().model.state_dict())
        assert "sync_norm: no-op with a single process (0 tensors)." in caplog.text


class Images(Dataset[Any]):
    """Forty images in the size that the hook sets."""

    def __init__(self) -> None:
        self.size = (1, 1)

    def update_dynamic_scale(self, size: tuple[int, int]) -> None:
        self.size = size

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1).expand(1, *self.size)


@pytest.fixture(scope="module")
def sizes() -> list[tuple[int, int]]:
    """Size of each batch of a training of 40 iterations."""
    recorded = []

    class SizeRecorder(Hook):
        def before_train_iter(self, batch: torch.Tensor) -> None:
            recorded.append((batch.shape[-2], batch.shape[-1]))

    hook = build_hook({"type": "SyncRandomSizeHook"})
    loader = DataLoader(Images())
    trainer(hook, SizeRecorder(), model=LossModel(), loss_fn=None, train_loader=loader, seed=0, epochs=1).fit()
    return recorded


class TestRandomSizes:
    def test_size_changes_every_ten_iterations(self, sizes: list[tuple[int, int]]) -> None:
        assert [len(set(sizes[i : i + 10])) for i in range(0, 40, 10)] == [1] * 4
        assert len(set(sizes)) > 1

    def test_images_are_square_multiples_of_32_from_448_to_832(self, sizes: list[tuple[int, int]]) -> None:
        assert all(height == width and height % 32 == 0 and 448 <= height <= 832 for height, width in sizes)

    @pytest.mark.parametrize(
        ("key", "default"),
        [("ratio_range", (14, 26)), ("img_scale", (640, 640)), ("interval", 10)],
    )
    def test_default_of_the_sizes(self, key: str, default: Any) -> None:
        assert getattr(build_hook({"type": "SyncRandomSizeHook"}).config, key) == default


class TestLearningRate:
    def test_warm_up_is_quadratic_and_the_last_epochs_are_constant(self) -> None:
        rates = []

        class RateRecorder(Hook):
            def after_train_iter(self, run: Run) -> None:
                rates.append(run.optimizer.param_groups[0]["lr"])

        hook = build_hook({"type": "YOLOXLrUpdaterHook", "warmup_epochs": 1, "num_last_epochs": 1})
        trainer(hook, RateRecorder(), lr=0.9, train_loader=pairs(3), epochs=3).fit()
        # 0.9 (i/3)^2; a cosine from 0.9 to 0.05 * 0.9 = 0.045 over three iterations, at 1/3 and 2/3; then 0.045.
        expected = [0.1, 0.4, 0.9, 0.045 + 0.4275 * 1.5, 0.045 + 0.4275 * 0.5, 0.045, 0.045, 0.045, 0.045]
        assert rates == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("key", "default"),
        [("num_last_epochs", 15), ("warmup_epochs", 5), ("min_lr_ratio", 0.05), ("by_epoch", False)],
    )
    def test_default_of_the_schedule(self, key: str, default: Any) -> None:
        assert getattr(build_hook({"type": "YOLOXLrUpdaterHook"}).config, key) == default


class Mosaic:
    """Transform that the final phase skips."""


class Augmented(Dataset[Any]):
    """Three samples with the number of skipped transforms."""

    def __init__(self) -> None:
        self.transforms = [Mosaic()]
        self._skip_type_keys: list[str] = []

    def update_skip_type_keys(self, keys: list[str]) -> None:
        self._skip_type_keys = list(keys)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(len(self._skip_type_keys))])


class Head(LossModel):
    """Model with the flag of an additional L1 loss."""

    use_l1 = False


@pytest.fixture(scope="module")
def phases() -> list[tuple[float, bool]]:
    """Number of skipped transforms and the L1 flag in the first iteration of each of four epochs."""
    recorded = []

    class PhaseRecorder(Hook):
        priority = 90

        def before_train_iter(self, batch: torch.Tensor, batch_idx: int, model: nn.Module) -> None:
            if batch_idx == 0:
                recorded.append((batch.item(), bool(model.use_l1)))

    hook = build_hook({"type": "YOLOXModeSwitchHook", "num_last_epochs": 2})
    loader = DataLoader(Augmented())
    trainer(hook, PhaseRecorder(), model=Head(), loss_fn=None, train_loader=loader, epochs=4).fit()
    return recorded


class TestModeSwitch:
    def test_strong_augmentation_is_skipped_in_the_last_epochs(self, phases: list[tuple[float, bool]]) -> None:
        assert [skipped for skipped, _ in phases] == [0, 0, 3, 3]

    def test_l1_loss_is_enabled_in_the_last_epochs(self, phases: list[tuple[float, bool]]) -> None:
        assert [enabled for _, enabled in phases] == [False, False, True, True]

    @pytest.mark.parametrize(
        ("key", "default"), [("num_last_epochs", 15), ("skip_type_keys", ["Mosaic", "RandomAffine", "MixUp"])]
    )
    def test_default_of_the_switch(self, key: str, default: Any) -> None:
        assert getattr(build_hook({"type": "YOLOXModeSwitchHook"}).config, key) == default


GROUPS = {
    "global": ["before_run", "after_run"],
    "training": [
        "before_train",
        "before_train_epoch",
        "before_train_iter",
        "after_train_iter",
        "after_train_epoch",
        "after_train",
    ],
    "validation": [
        "before_val",
        "before_val_epoch",
        "before_val_iter",
        "after_val_iter",
        "after_val_epoch",
        "after_val",
    ],
    "testing": [
        "before_test",
        "before_test_epoch",
        "before_test_iter",
        "after_test_iter",
        "after_test_epoch",
        "after_test",
    ],
    "checkpoints": ["before_save_checkpoint", "after_save_checkpoint"],
}


class TestPoints:
    @pytest.mark.parametrize(
        ("group", "point"), [(group, point) for group, points in GROUPS.items() for point in points]
    )
    def test_custom_hook_is_called_at_the_point(self, tmp_path: Path, group: str, point: str) -> None:
        calls: list[str] = []

        class Custom(Hook):
            pass

        setattr(Custom, point, lambda self, run: calls.append(run.mode))
        loaders = {"train_loader": pairs(1), "val_loader": pairs(1), "test_loader": pairs(1)}
        loop = trainer(Custom(), Saver("after_epoch"), model=net(2), epochs=1, work_dir=tmp_path, **loaders)
        loop.fit()
        loop.test()
        modes = {"global": ["train", "test"], "testing": ["test"]}
        assert calls == modes.get(group, ["train"])

    def test_saved_file_exists_after_the_save_only(self, tmp_path: Path) -> None:
        exists = []

        class Look(Hook):
            def before_save_checkpoint(self, run: Run) -> None:
                exists.append((run.require("checkpoints_dir") / "iter_1.pth").exists())

            def after_save_checkpoint(self, path: Path) -> None:
                exists.append(path.exists())

        trainer(Look(), Saver("after_epoch"), train_loader=pairs(1), epochs=1, work_dir=tmp_path).fit()
        assert exists == [False, True]


def define_hook() -> type[Hook]:
    """Define and register a hook of the user's own, with the name of an installed one."""

    @HOOKS.register_module()
    class CheckInvalidLossHook(Hook):
        def __init__(self, interval: int = 50) -> None:
            self.interval = interval

        def after_train_iter(
            self,
            runner: Run,
            batch_idx: int,
            data_batch: Optional[dict] = None,  # noqa: UP045
            outputs: Optional[dict] = None,  # noqa: UP045
        ) -> None:
            if self.every_n_train_iters(runner, self.interval):
                assert torch.isfinite(outputs["loss"]), runner.logger.info("loss become infinite or NaN!")

    return CheckInvalidLossHook


def run_with(hook: object, bad: int, batches: int = 6) -> Run:
    """Train with a loss that is NaN from one iteration on."""
    values = [NAN if number >= bad else 1.0 for number in range(1, batches + 1)]
    loader = [torch.tensor([value]) for value in values]
    return trainer(hook, model=LossModel(), loss_fn=None, train_loader=loader, lr=0.0, epochs=1).fit()


class TestOwnHook:
    def test_registered_class_has_precedence_over_an_installed_one(self) -> None:
        cls = define_hook()
        assert type(build_hook({"type": "CheckInvalidLossHook"})) is cls

    def test_settings_are_passed_to_the_constructor(self) -> None:
        define_hook()
        (hook,) = build_hooks([{"type": "CheckInvalidLossHook", "interval": 2}])
        assert hook.interval == 2

    def test_interval_of_the_constructor_defaults_to_fifty(self) -> None:
        assert define_hook()().interval == 50

    @pytest.mark.parametrize(("bad", "iteration"), [(1, 2), (2, 2), (3, 4), (4, 4)])
    def test_nan_ends_the_run_at_the_next_check(self, bad: int, iteration: int) -> None:
        with pytest.raises(AssertionError) as caught:
            run_with(define_hook()(interval=2), bad)
        assert f"iteration {iteration}" in "".join(caught.value.__notes__)

    def test_message_is_written_to_the_log_of_the_run(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "hookbus")
        with pytest.raises(AssertionError):
            run_with(define_hook()(interval=1), 1)
        assert "loss become infinite or NaN!" in caplog.messages

    def test_finite_losses_end_the_run_regularly(self) -> None:
        assert run_with(define_hook()(interval=1), 7).outcome == "finished"

    def test_hook_receives_batch_index_and_batch(self) -> None:
        received = []

        class Arguments(Hook):
            def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):  # type: ignore[no-untyped-def]
                received.append((batch_idx, data_batch.item(), float(outputs["loss"])))

        run_with(Arguments(), 3, batches=2)
        assert received == [(0, 1.0, 1.0), (1, 1.0, 1.0)]

    def test_every_n_train_iters_counts_from_one(self) -> None:
        numbers = []

        class Third(Hook):
            def after_train_iter(self, runner: Run) -> None:
                if self.every_n_train_iters(runner, 3):
                    numbers.append(runner.iters_done)

        run_with(Third(), 99, batches=7)
        assert numbers == [3, 6]

    def test_registered_name_is_used_in_the_configuration(self) -> None:
        cls = define_hook()
        config = load_config({"hooks": [{"type": "CheckInvalidLossHook", "interval": 7}]})
        hooks = [hook for hook in config.build_valid_hooks() if type(hook) is cls]
        assert [hook.interval for hook in hooks] == [7]
