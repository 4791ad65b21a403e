"""Base classes of the image hooks: schedule, sample extraction and output of images."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from PIL import Image
from torch import nn

from hookbus import Hook, Needs, Run, every, hookimpl, once
from hookbus.data import move_to_device
from hookbus.distributed import sharding_of
from hookbus.errors import HookError, format_error, suggest_names
from hookbus.evaluation import call_model, copy_tensors, isolated_forward
from hookbus.writers import OutputFiles, image_directory, sanitize_name
from hookbus_visualization.anomalies import collect_anomalies
from hookbus_visualization.config import ImageConfig, SampleConfig
from hookbus_visualization.images import to_pixels
from hookbus_visualization.panel import Panel, RGBImage, compose_panels, has_display, open_window
from hookbus_visualization.samples import Samples, describe_shapes, extract_predictions, extract_samples

INVALID_NAME_CHARACTERS = re.compile(r"[^\w.-]|^\.")
MAX_NAME_LENGTH = 100


class ImageHook(Hook):
    """Base class of hooks that render images: extracts samples and publishes the rendered images.

    An error is logged as a warning and never ends the run. The hook runs on the main process only.
    """

    Config = ImageConfig
    observer = True
    ranks = "main"
    config: ImageConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._files: OutputFiles | None = None
        self._logged_warnings: set[str] = set()
        self._last_steps: dict[str, int] = {}

    @property
    def needs(self) -> Needs:
        """The batch that is rendered."""
        return Needs(batch=True)

    @property
    def output_paths(self) -> dict[str, str | None]:
        """Directory of the PNG files, if they are saved."""
        return {"out_dir": self.config.out_dir} if self.config.save else {}

    def check(self, run: Run) -> None:
        """Check that no other hook of this class saves its images in the same directory.

        Raises:
            ConfigError: If another hook has the same `out_dir`.
        """
        self.check_unique(
            run,
            f"saves images in {self.config.out_dir}",
            "Set another `out_dir`.",
            setting="out_dir",
            get_value=lambda hook: Path(hook.config.out_dir) if hook.config.save and hook.config.out_dir else None,
        )

    def before_run(self, run: Run) -> None:
        """Resolve the output directory.

        Raises:
            ConfigError: If `out_dir` is relative in a validation or test without a work directory.
        """
        self._logged_warnings, self._last_steps = set(), {}
        # The name of a hook is arbitrary text: sanitizing it keeps the directory below the visualization directory.
        default = sanitize_name(self.name, INVALID_NAME_CHARACTERS, MAX_NAME_LENGTH)
        setting = self.name, "out_dir", self.config.out_dir
        directory = image_directory(run, *setting, default) if self.config.save else None
        self._files = None if directory is None else OutputFiles(run, directory)
        if self.config.show and not has_display():
            self.warn_once(run, "`show: true` is ignored because no display is available. Set `show: false`.")

    def first_samples(self, run: Run, batch: Any, outputs: Any, count: int) -> Samples:
        """Return the first samples of a batch.

        Values returned by `parse` take precedence over values under the usual keys. The inputs are moved to the device
        of the model; all other values stay on their device.

        Args:
            run: The current run.
            batch: The batch of the iteration.
            outputs: The outputs of the step.
            count: Maximum number of samples.

        Returns:
            At most `count` samples.

        Raises:
            HookError: If `parse` does not return a mapping, or returns an unknown key.
        """
        samples = self.find_samples(batch, outputs)
        if self.config.parse is not None:
            samples = replace(samples, **self._validate_parsed(self.config.parse(batch, outputs)))
        # Slicing before the transfer limits the copy to the rendered samples.
        samples = samples.take_first(count)
        parameter = None if run.model is None else next(run.model.parameters(), None)
        if parameter is None:
            return samples
        return replace(samples, inputs=move_to_device(samples.inputs, parameter.device))

    def _is_first_at_step(self, run: Run, stage: str) -> bool:
        """Return whether no image of a stage has been rendered at this step; the caller renders one."""
        # With gradient accumulation several iterations share a step, and a tag has at most one image per step.
        last_step, self._last_steps[stage] = self._last_steps.get(stage), run.steps_done
        return last_step != run.steps_done

    def find_samples(self, batch: Any, outputs: Any) -> Samples:
        """Return the samples under the usual keys."""
        return extract_samples(batch, outputs)

    def convert_image(self, image: Any) -> RGBImage:
        """Convert an image to pixels with the `mean`, `std` and `value_range` of the config.

        Raises:
            ValueError: If the value is not an image.
        """
        return to_pixels(image, self.config.mean, self.config.std, self.config.value_range)

    def get_callable_model(self, run: Run) -> nn.Module | None:
        """Return the model, or None if this process cannot call it alone; a sharded model is reported once."""
        model = run.model
        # The forward pass of a DTensor parameter is a collective call, and this hook runs on the main process only.
        if sharding_of(model) is not None:
            self.warn_once(
                run,
                "the model is sharded across ranks and cannot be called on the main process alone. Images that require "
                "a forward pass are skipped.",
            )
            return None
        return model

    def publish(self, run: Run, stage: str, label: str, panels: Sequence[Panel], title: str = "") -> None:
        """Emit `log_images`, save a PNG file and open a window, as configured.

        Args:
            run: The current run.
            stage: "train", "val", "test", or "val/<loader>".
            label: Content of the images. The tag is `<stage>/<hook name>/<label>`.
            panels: The images. An empty sequence is a no-op.
            title: Text above the images, after the step. Default: `label`.
        """
        if not panels:
            return
        tag, step = f"{stage}/{self.name}/{label}", run.steps_done
        title = f"step {step}: {title or label}"
        # Composing is expensive and not needed by the "tensorboard" backend without a file and without a window.
        compose = functools.cache(lambda: compose_panels(panels, title, self.config.backend))
        if self.config.backend != "tensorboard" or len(panels) == 1:
            run.bus.emit("log_images", tag=tag, images=compose(), caption=title)
        else:
            for i, panel in enumerate(panels):
                run.bus.emit("log_images", tag=f"{tag}/{i}", images=panel.image, caption=panel.caption)
        if self._files is not None:
            parts = (part.replace("/", "-", 1) for part in (stage, label))
            # Labels contain names from the user, such as loaders and keys of `visualize_features`.
            name = sanitize_name("-".join(parts), INVALID_NAME_CHARACTERS, MAX_NAME_LENGTH)
            image = Image.fromarray(compose())
            # An atomic write: a viewer that watches the directory never reads a truncated file.
            self._files.write(f"{name}-step-{step:08}.png", lambda file: image.save(file, format="png"))
        if self.config.show and has_display():
            open_window(compose(), title)

    def warn_no_samples(self, run: Run, batch: Any, outputs: Any, reason: str) -> None:
        """Warn once per run that a batch cannot be rendered, with the shapes of the batch and the outputs."""
        self.warn_once(
            run,
            f"{reason} Got the batch {describe_shapes(batch)} and the outputs {describe_shapes(outputs)}. "
            "Set `parse` to a function of (batch, outputs) that returns a mapping with inputs, images, targets or "
            "predictions.",
        )

    def warn_once(self, run: Run, message: str, key: str = "") -> None:
        """Log a warning, once per run and key; the key of a message without numbers is the message."""
        if (key or message) not in self._logged_warnings:
            self._logged_warnings.add(key or message)
            run.logger.warning("%s: %s", self.name, message)

    @contextmanager
    def warn_of_anomalies(self, run: Run) -> Iterator[None]:
        """Context manager that logs which values inside it are invalid, once per run and problem."""
        with collect_anomalies() as messages:
            yield
        for problem, message in messages.items():
            self.warn_once(run, message, problem)

    def _validate_parsed(self, values: Any) -> dict[str, Any]:
        known = [field.name for field in fields(Samples)]
        if not isinstance(values, dict):
            kind = type(values).__name__
            raise HookError(f"`parse` must return a mapping with any of {', '.join(known)}, got {kind}.")
        if unknown := [key for key in values if key not in known]:
            raise HookError(f"`parse` returned the unknown key {unknown[0]!r}.{suggest_names(str(unknown[0]), known)}")
        return values


class SampleHook(ImageHook):
    """Base class of hooks that render samples.

    Renders training samples every `interval` iterations, and the first batch of each loader of a validation or test.
    Between these iterations the hook does nothing. Subclasses implement `draw`.
    """

    Config = SampleConfig
    config: SampleConfig

    def draw(self, run: Run, stage: str, samples: Samples, batch: Any, outputs: Any) -> None:
        """Render the samples and pass them to `publish`.

        Args:
            run: The current run.
            stage: The stage, for `publish`.
            samples: At most `max_samples` samples, without targets if `draw_gt` is false and without predictions if
                `draw_pred` is false.
            batch: The full batch, for `warn_no_samples`.
            outputs: The full outputs, for `warn_no_samples`.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `draw`")

    def add_predictions(self, run: Run, samples: Samples) -> Samples:
        """Return the samples with predictions; the model is called if the outputs contain none.

        If calling the model with only the inputs raises, the samples are returned unchanged and a warning is logged
        once per run.
        """
        if not self.config.draw_pred or samples.predictions is not None or samples.inputs is None:
            return samples
        if (model := self.get_callable_model(run)) is None:
            return samples
        try:
            with isolated_forward(model) as inner:
                outputs = call_model(inner, copy_tensors(samples.inputs))
            return replace(samples, predictions=extract_predictions(outputs))
        except Exception as error:  # the forward method is user code and may raise anything
            self.warn_once(
                run,
                "no predictions are drawn: the outputs contain none, and calling the model with only the inputs raised "
                f"{format_error(error)}. Return the predictions from the step, or set `parse`.",
            )
            return samples

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Run, batch: Any, outputs: Any) -> None:
        """Render samples of a training batch."""
        self._draw_stage(run, "train", None, batch, outputs)

    @hookimpl(when=once(1), frequency=False)
    def after_val_iter(self, run: Run, batch: Any, outputs: Any, dataloader_name: str | None) -> None:
        """Render samples of the first batch of a validation loader."""
        self._draw_stage(run, "val", dataloader_name, batch, outputs)

    @hookimpl(when=once(1), frequency=False)
    def after_test_iter(self, run: Run, batch: Any, outputs: Any, dataloader_name: str | None) -> None:
        """Render samples of the first batch of a test loader."""
        self._draw_stage(run, "test", dataloader_name, batch, outputs)

    def _draw_stage(self, run: Run, mode: str, loader: str | None, batch: Any, outputs: Any) -> None:
        stage = mode if loader is None else f"{mode}/{loader}"
        if run.sanity_checking or not self._is_first_at_step(run, stage):
            return
        samples = self.first_samples(run, batch, outputs, self.config.max_samples)
        samples = replace(samples, targets=samples.targets if self.config.draw_gt else None)
        samples = replace(samples, predictions=samples.predictions if self.config.draw_pred else None)
        with self.warn_of_anomalies(run):
            self.draw(run, stage, samples, batch, outputs)
