"""What hooks of pictures have in common: when they draw, what they are given, and where a picture goes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from PIL import Image
from torch import nn

from hookbus import Hook, Run, every, hookimpl, once
from hookbus.checkpoints.files import commit
from hookbus.errors import HookError, did_you_mean, in_one_line
from hookbus.model.wrappers import unwrapped
from hookbus.pictures import pictures_directory
from hookbus.records.names import safe_name
from hookbus.training.batches import move
from hookbus_visualization.config import PictureConfig, SampleConfig
from hookbus_visualization.images import to_pixels
from hookbus_visualization.panel import Panel, Picture
from hookbus_visualization.probe import copied, probing
from hookbus_visualization.seen import Seen, predictions_in, seen_in, shapes
from hookbus_visualization.sheet import has_display, open_window, sheet
from hookbus_visualization.unchanged import call

__all__ = ["PictureHook", "SampleHook"]

NOT_IN_A_NAME = re.compile(r"[^\w.-]|^\.")
LONGEST = 100


class PictureHook(Hook):
    """Base of hooks that draw: it finds what is to be drawn, and delivers pictures.

    A failure warns and never ends the run. Only the main process draws.
    """

    Config = PictureConfig
    observer = True
    ranks = "main"
    config: PictureConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._folder: Path | None = None
        self._told: set[str] = set()

    def before_run(self, run: Run) -> None:
        """Find the folder.

        Raises:
            ConfigError: there is no place for `out_dir`.
        """
        self._told = set()
        own = safe_name(self.name, NOT_IN_A_NAME, LONGEST)
        self._folder = (
            pictures_directory(run, self.name, "out_dir", self.config.out_dir, own) if self.config.save else None
        )
        if self.config.show and not has_display():
            self.say_once(run, "there is no display, so no window shows the pictures (show: true).")

    def seen(self, run: Run, batch: Any, outputs: Any, count: int) -> Seen:
        """The first samples of a batch: what `parse` finds, and under the usual keys what it leaves out.

        The inputs are where the model is; the rest is where it was found.

        Raises:
            HookError: `parse` returns something else than it should.
        """
        seen = self.find(batch, outputs)
        if self.config.parse is not None:
            seen = replace(seen, **self._checked(self.config.parse(batch, outputs)))
        seen = seen.first(count)
        device = next((each.device for each in run.model.parameters()), None) if run.model is not None else None
        return seen if device is None else replace(seen, inputs=move(seen.inputs, device))

    def find(self, batch: Any, outputs: Any) -> Seen:
        """What there is under the usual keys."""
        return seen_in(batch, outputs)

    def pixels(self, image: Any) -> Picture:
        """The pixels of an image, as the settings say that it is to be read.

        Raises:
            ValueError: it is no image.
        """
        return to_pixels(image, self.config.mean, self.config.std, self.config.value_range)

    def model_of(self, run: Run) -> nn.Module | None:
        """The model, if this process alone can call it; where it cannot, the user is told once."""
        model = run.model
        if model is not None and any(hasattr(each, "device_mesh") for each in unwrapped(model).parameters()):
            self.say_once(run, "the model is spread over several processes, so it cannot be called here for a picture.")
            return None
        return model

    def deliver(self, run: Run, stage: str, what: str, panels: Sequence[Panel], title: str = "") -> None:
        """Hand pictures to everyone who records pictures, and to file and window as the settings say.

        Args:
            run: the run.
            stage: "train", "val", "test", or "val/<loader>".
            what: what is drawn; any text. With the stage and the name of the hook it is the name of the record.
            panels: the pictures; nothing is done where there are none.
            title: stands above the pictures, after the step.
        """
        if not panels:
            return
        tag, step = f"{stage}/{self.name}/{what}", run.steps_done
        title = f"step {step}: {title or what}"
        whole = functools.cache(lambda: sheet(panels, title, self.config.backend))
        self._record(run, tag, panels, title, whole)
        if self._folder is not None:
            name = safe_name("-".join(each.replace("/", "-", 1) for each in (stage, what)), NOT_IN_A_NAME, LONGEST)
            image = Image.fromarray(whole())
            commit(self._folder / f"{name}-step-{step:08}.png", lambda file: image.save(file, format="png"))
        if self.config.show and has_display():
            open_window(whole(), title)

    def _record(self, run: Run, tag: str, panels: Sequence[Panel], title: str, whole: Callable[[], Picture]) -> None:
        if self.config.backend != "tensorboard" or len(panels) == 1:
            run.bus.emit("log_images", tag=tag, images=whole(), caption=title)
            return
        for i, panel in enumerate(panels):
            run.bus.emit("log_images", tag=f"{tag}/{i}", images=panel.picture, caption=panel.caption)

    def nothing_fits(self, run: Run, batch: Any, outputs: Any, why: str) -> None:
        """Tell, once in a run, that nothing can be drawn of a batch, and of what shape it is."""
        self.say_once(
            run,
            f"{why} The batch is {shapes(batch)}, the outputs are {shapes(outputs)}. Give parse, a function of (batch, "
            "outputs) that returns a mapping with inputs, images, targets or predictions.",
        )

    def say_once(self, run: Run, text: str) -> None:
        """Warn, unless the same was said in this run."""
        if text not in self._told:
            self._told.add(text)
            run.logger.warning("%s: %s", self.name, text)

    def _checked(self, found: Any) -> dict[str, Any]:
        known = [each.name for each in fields(Seen)]
        if not isinstance(found, dict):
            raise HookError(f"parse returns a {type(found).__name__}, not a mapping with any of {', '.join(known)}.")
        for key in found:
            if key not in known:
                raise HookError(f"parse returns {key!r}, which is not drawn.{did_you_mean(str(key), known)}")
        return found


class SampleHook(PictureHook):
    """Base of hooks that draw samples: of training every `interval` iterations, and of the first batch of each loader
    of a validation or test. Where nothing is due nothing is done. A subclass says in `draw` what is drawn.
    """

    Config = SampleConfig
    config: SampleConfig

    def draw(self, run: Run, stage: str, seen: Seen, batch: Any, outputs: Any) -> None:
        """Draw the samples, and `deliver` them.

        Args:
            run: the run.
            stage: for `deliver`.
            seen: at most `max_samples` of the batch, without targets or predictions that are not to be drawn.
            batch, outputs: all of it, for `nothing_fits`.
        """
        raise NotImplementedError(f"{type(self).__name__} must say what it draws")

    def complete(self, run: Run, seen: Seen) -> Seen:
        """The samples with what the model says of them, which is asked where the outputs do not tell.

        A model that cannot be called with the inputs alone leaves them without, and the user is told once.
        """
        if not self.config.draw_pred or seen.predictions is not None or seen.inputs is None:
            return seen
        if (model := self.model_of(run)) is None:
            return seen
        try:
            with probing(model) as inner:
                return replace(seen, predictions=predictions_in(call(inner, copied(seen.inputs))))
        except Exception as error:
            self.say_once(
                run,
                f"no predictions are drawn: the outputs hold none, and the model, called with the inputs alone, raised "
                f"{in_one_line(error)}. Let the step return them, or give parse.",
            )
            return seen

    def before_run(self, run: Run) -> None:
        """Find the folder."""
        super().before_run(run)
        self._drawn: dict[str, int] = {}

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Run, batch: Any, outputs: Any) -> None:
        """Draw samples of a training batch."""
        self._draw(run, "train", batch, outputs)

    @hookimpl(when=once(1))
    def after_val_iter(self, run: Run, batch: Any, outputs: Any, dataloader_name: str | None) -> None:
        """Draw samples of the first batch of a validation loader."""
        self._draw(run, _stage("val", dataloader_name), batch, outputs)

    @hookimpl(when=once(1))
    def after_test_iter(self, run: Run, batch: Any, outputs: Any, dataloader_name: str | None) -> None:
        """Draw samples of the first batch of a test loader."""
        self._draw(run, _stage("test", dataloader_name), batch, outputs)

    def _draw(self, run: Run, stage: str, batch: Any, outputs: Any) -> None:
        if run.sanity_checking or self._drawn.get(stage) == run.steps_done:  # a record has one picture per update
            return
        self._drawn[stage] = run.steps_done
        seen = self.seen(run, batch, outputs, self.config.max_samples)
        seen = replace(seen, targets=seen.targets if self.config.draw_gt else None)
        seen = replace(seen, predictions=seen.predictions if self.config.draw_pred else None)
        self.draw(run, stage, seen, batch, outputs)


def _stage(kind: str, loader: str | None) -> str:
    return kind if loader is None else f"{kind}/{loader}"
