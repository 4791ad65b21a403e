"""User code that must pass `mypy --strict`: a hook, a custom loop, a trainer. Checked by `make types`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from hookbus import (
    Hook,
    HookBus,
    HookConfig,
    Priority,
    Run,
    Trainer,
    actionspec,
    between,
    deprecated,
    every,
    hookimpl,
    hookspec,
    last,
    once,
)


class RenderPoints:
    @hookspec(unit="epoch")
    def after_render(self, image: Tensor, *, tag: str = "image") -> None:
        """An image was rendered."""

    @deprecated(removed_in="acme-render 2.0", replacement="after_render")
    @hookspec
    def after_frame(self, image: Tensor) -> None:
        """A frame was drawn."""


class GreetConfig(HookConfig):
    text: str = "hello"
    interval: int = 50
    period: int | None = Field(
        default=None, deprecated=deprecated(removed_in="acme-greet 2.0", replacement="`interval`")
    )


class GreetHook(Hook):
    Config = GreetConfig
    config: GreetConfig
    priority = Priority.LOW

    def before_train(self, run: Run, model: nn.Module) -> None:
        super().before_train(run, model)
        run.logger.write_scalar("start", 1.0, run.global_step)
        run.logger.info("%s, %s", self.config.text, type(model).__name__)

    @hookimpl(when=every("interval") & ~between(1, 10) | once(3) | last)
    def after_train_iter(self, run: Run, outputs: dict[str, Tensor]) -> None:
        run.log(greeting=len(self.config.text))
        if run.steps_done > 1000:
            run.request_stop("limit reached")

    def state_dict(self) -> dict[str, Any]:
        return {"text": self.config.text}

    def migrate_state(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        return {"text": state["greeting"]} if version == 1 else super().migrate_state(state, version)


def custom_loop() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bus = HookBus(hooks=[GreetHook(text="hi"), GreetHook({"text": "ho"})])
    after_render = bus.declare("after_render", args=("image",))

    @bus.on("after_train_iter", when=every(100))
    def report(run: Run, loss: Tensor) -> None:
        run.log(seen=loss)

    with bus.run(model=model, optimizer=optimizer, epochs=2) as run:
        for epoch in run.epochs():
            bus.emit("before_train_epoch", epoch=epoch)
            for i, batch in run.batches([torch.zeros(4, 2)]):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                loss = model(batch).mean()
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": loss})
            bus.emit("after_val_epoch", metrics={"accuracy": 0.5})
            bus.emit("after_train_epoch")
    after_render(image=None)


def custom_points(bus: HookBus) -> None:
    notice = deprecated(removed_in="acme-render 2.0", argument="pixels")
    bus.declare("after_crop", args=("image", "pixels"), deprecated=[notice])
    bus.declare("after_zoom", deprecated="soon")  # type: ignore[arg-type]
    bus.declare(RenderPoints.after_frame)(torch.zeros(2, 2))
    after_render = bus.declare(RenderPoints.after_render)
    after_render(torch.zeros(2, 2))
    after_render(image=torch.zeros(2, 2), tag="weights")
    after_render("weights")  # type: ignore[arg-type] # mypy reports an error if an ignore is not needed
    after_render(torch.zeros(2, 2), tga="weights")  # type: ignore[call-arg]
    after_render()  # type: ignore[call-arg]


def sample(run: Run, prompts: list[str], count: int = 1) -> list[Tensor]:
    return [torch.zeros(1)] * count


class SampleActions:
    @actionspec
    def grade(self, images: list[Tensor]) -> float:
        """Grade images."""
        raise NotImplementedError


def custom_actions(bus: HookBus) -> list[Tensor]:
    draw = bus.declare_action(sample)
    images = draw(["a"], count=2)
    draw(prompts=[1])  # type: ignore[list-item]
    draw()  # type: ignore[call-arg]
    grade = bus.declare_action(SampleActions.grade)
    value: float = grade(images)
    value = grade("images")  # type: ignore[arg-type]
    return images if value else []


def services(run: Run) -> Path:
    directory = run.get("experiment_dir")
    if directory is None:
        run.get("logger").info("no files for %s", type(run.require("model")).__name__)
    run.require("logs_dir").touchy()  # type: ignore[attr-defined]
    tracker: int = run.get("tracker", 3)
    return directory or run.require("logs_dir") / str(tracker)


def trial_steps(run: Run) -> float:
    with run.sandbox() as trial:
        losses = [trial.train_step(batch)["loss"] for batch in trial.batches()]
        trial.validate()  # type: ignore[attr-defined]
    return min(map(float, losses)) + run.metrics["val/loss"]


def trainer() -> float:
    data = DataLoader(TensorDataset(torch.zeros(8, 2), torch.zeros(8, dtype=torch.long)), batch_size=4)
    fit = Trainer(
        nn.Linear(2, 3),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        nn.functional.cross_entropy,
        data,
        val_loader={"clean": data, "noisy": data},
        epochs=2,
        work_dir=None,
        metrics=["accuracy"],
        hooks=[GreetHook()],
    )
    run = fit.fit()
    assert run.outcome == "finished"
    return fit.validate()["val/clean/accuracy"]
