"""The sections of a run file, as pydantic models."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Component", "DatasetConfig", "LoadFrom", "LoaderConfig", "SchedulerConfig", "Section", "TrainingConfig"]


class Section(BaseModel):
    """A part of a run file: an unknown key is refused, and so is a value of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Component(BaseModel):
    """Something that is built by name: a type, and settings for it."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    type: str = Field(description="An entry point, or a path such as my_module:factory.")

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the type."""
        return dict(self.model_extra or {})


class SchedulerConfig(Component):
    """A learning-rate scheduler of torch.optim.lr_scheduler, or a path."""

    interval: Literal["epoch", "step"] = Field(default="epoch", description="When it is stepped.")
    monitor: str | None = Field(default=None, description="The metric that it needs, if it needs one.")


class DatasetConfig(Component):
    """A data set by name."""

    batch_size: int = Field(default=32, ge=1, description="Samples per batch.")


class LoaderConfig(Section):
    """How batches are loaded: options of torch's DataLoader."""

    num_workers: int = Field(default=0, ge=0, description="Processes that load data; 0 loads in the training process.")
    pin_memory: bool = Field(default=False, description="Copy batches into page-locked memory.")
    drop_last: bool = Field(default=False, description="Leave out a last training batch that is not full.")
    shuffle: bool = Field(default=True, description="A new order of the training samples in every epoch.")
    persistent_workers: bool = Field(default=False, description="Keep the loading processes over epochs.")
    prefetch_factor: int | None = Field(default=None, ge=1, description="Batches that each process loads ahead.")


class DDPConfig(Section):
    """How gradients are averaged over several processes: options of torch's DistributedDataParallel."""

    find_unused_parameters: bool = Field(default=False, description="Look for parameters that the loss does not reach.")
    forward_sync_buffers: bool = Field(default=True, description="Take the main process's buffers before each forward.")


class FSDP2Config(Section):
    """How the weights of a model are spread over several processes."""

    wrap: list[str] = Field(default=[], description="Classes of modules whose weights come together by themselves.")
    mesh: list[int] | None = Field(
        default=None, description="The processes, as [parts] or [copies, parts] of the model; default all as parts."
    )


class TrainingConfig(Section):
    """How long and how training runs."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["epochs"]}, {"required": ["iterations"]}]})

    epochs: int | None = Field(default=None, ge=1, description="The limit in epochs.")
    iterations: int | None = Field(default=None, ge=1, description="The limit in iterations, instead of epochs.")
    accumulate: int = Field(default=1, ge=1, description="Micro-batches per optimizer update.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32", description="fp32, or autocast to a smaller type."
    )
    clip_grad_norm: float | None = Field(default=None, gt=0, description="The largest norm of all gradients together.")
    distributed: Literal["ddp", "fsdp2", "none"] = Field(
        default="ddp",
        description="Of several processes each has the whole model (ddp), or a part of every weight (fsdp2); "
        "none: model and data see to it themselves.",
    )
    ddp: DDPConfig = Field(default=DDPConfig(), description="Options of DistributedDataParallel.")
    fsdp2: FSDP2Config = Field(default=FSDP2Config(), description="Options of weights that are spread.")
    agree_every: int = Field(
        default=1, ge=1, description="Iterations between two moments at which processes compare what hooks ask for."
    )
    validate_first: bool = Field(default=False, description="One validation before training, which counts for nothing.")

    @model_validator(mode="after")
    def _one_limit(self) -> TrainingConfig:
        if (self.epochs is None) == (self.iterations is None):
            raise ValueError("give one limit, either epochs or iterations.")
        return self


class LoadFrom(Section):
    """Weights to start from."""

    path: str = Field(min_length=1, description="A checkpoint, or a file with a bare state dict.")
    weights: Literal["raw", "averaged"] = Field(default="raw", description="Which of its weights.")
    strict: bool = Field(default=True, description="Every one has to fit; false: what does not is left out, and told.")
