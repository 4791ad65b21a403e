"""pydantic models of the sections of a run file."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Component", "DatasetConfig", "LoadFrom", "LoaderConfig", "SchedulerConfig", "Section", "TrainingConfig"]


class Section(BaseModel):
    """Base model of the sections. Unknown keys and values of another type are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Component(BaseModel):
    """An object that is built by name: a type and its settings."""

    # The keys of a component depend on its factory, which validates them, see `assembly.factories`.
    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    type: str = Field(description="An entry point, or an import string such as my_module:factory.")

    @property
    def settings(self) -> dict[str, Any]:
        """Settings without the type."""
        return dict(self.model_extra or {})


class SchedulerConfig(Component):
    """A learning-rate scheduler: a class of torch.optim.lr_scheduler, or an import string."""

    interval: Literal["epoch", "step"] = Field(
        default="epoch", description="Unit after which the scheduler is stepped."
    )
    monitor: str | None = Field(default=None, description="Metric that the scheduler requires.")


class DatasetConfig(Component):
    """A dataset that is built by name."""

    batch_size: int = Field(default=32, ge=1, description="Number of samples per batch.")


class LoaderConfig(Section):
    """Options of `torch.utils.data.DataLoader`."""

    num_workers: int = Field(
        default=0, ge=0, description="Number of loader worker processes; 0 loads in the main process."
    )
    pin_memory: bool = Field(default=False, description="Copy batches to page-locked memory.")
    drop_last: bool = Field(default=False, description="Drop the last training batch if it is incomplete.")
    shuffle: bool = Field(default=True, description="Reshuffle the training samples in every epoch.")
    persistent_workers: bool = Field(default=False, description="Keep worker processes alive between epochs.")
    prefetch_factor: int | None = Field(
        default=None, ge=1, description="Number of batches that each worker prefetches."
    )


class DDPConfig(Section):
    """Options of `torch.nn.parallel.DistributedDataParallel`."""

    find_unused_parameters: bool = Field(default=False, description="Detect parameters that do not receive a gradient.")
    forward_sync_buffers: bool = Field(
        default=True, description="Broadcast the buffers of rank 0 before each forward pass."
    )


class FSDP2Config(Section):
    """Options of FSDP2, which shards the parameters across ranks."""

    wrap: list[str] = Field(default=[], description="Class names of modules to shard separately.")
    mesh: list[int] | None = Field(
        default=None,
        description="Shape of the device mesh: [shards] or [replicas, shards]. Default: one shard per rank.",
    )


class TrainingConfig(Section):
    """Limit and options of the training loop."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["epochs"]}, {"required": ["iterations"]}]})

    epochs: int | None = Field(default=None, ge=1, description="Limit in epochs.")
    iterations: int | None = Field(default=None, ge=1, description="Limit in iterations, instead of epochs.")
    accumulate: int = Field(default=1, ge=1, description="Number of micro-batches per optimizer step.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(default="fp32", description="fp32, or autocast to bf16 or fp16.")
    clip_grad_norm: float | None = Field(default=None, gt=0, description="Maximum norm of all gradients together.")
    distributed: Literal["ddp", "fsdp2", "none"] = Field(
        default="ddp",
        description=(
            "Strategy of distributed training: ddp replicates the model, fsdp2 shards it, none leaves model and data "
            "unchanged."
        ),
    )
    ddp: DDPConfig = Field(default=DDPConfig(), description="Options of DistributedDataParallel.")
    fsdp2: FSDP2Config = Field(default=FSDP2Config(), description="Options of FSDP2.")
    agree_every: int = Field(
        default=1, ge=1, description="Number of iterations between two synchronizations of requests across ranks."
    )
    validate_first: bool = Field(default=False, description="Run a sanity-check validation before training.")

    @model_validator(mode="after")
    def _validate_limit(self) -> TrainingConfig:
        # Two limits would be ambiguous: it is unclear which of them ends the run.
        if (self.epochs is None) == (self.iterations is None):
            raise ValueError("exactly one limit is required. Set either epochs or iterations.")
        return self


class LoadFrom(Section):
    """Initial weights."""

    path: str = Field(min_length=1, description="A checkpoint, or a file with a bare state dict.")
    weights: Literal["raw", "averaged"] = Field(default="raw", description="Weights to load: raw or averaged.")
    strict: bool = Field(
        default=True, description="Require all keys to match; if false, mismatches are skipped with a warning."
    )
