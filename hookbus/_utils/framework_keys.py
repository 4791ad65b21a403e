"""Names of settings and arguments in other frameworks, and the equivalent keys of a run file, for error messages."""

from __future__ import annotations

from collections.abc import Collection

FRAMEWORK_KEYS = {
    "accumulate_grad_batches": "training.accumulate",
    "callbacks": "hooks",
    "ckpt_path": "resume",
    "criterion": "loss",
    "custom_hooks": "hooks",
    "default_root_dir": "work_dir",
    "devices": "device",
    "exp_dir": "work_dir",
    "gradient_accumulation_steps": "training.accumulate",
    "gradient_clip_val": "training.clip_grad_norm",
    "loss_function": "loss",
    "lr_scheduler": "scheduler",
    "max_epochs": "training.epochs",
    "max_grad_norm": "training.clip_grad_norm",
    "max_iters": "training.iterations",
    "max_steps": "training.iterations",
    "mixed_precision": "training.precision",
    "n_epochs": "training.epochs",
    "num_epochs": "training.epochs",
    "num_iterations": "training.iterations",
    "num_train_epochs": "training.epochs",
    "output_dir": "work_dir",
    "resume_from": "resume",
    "resume_from_checkpoint": "resume",
    "strategy": "training.distributed",
    "train_dataloader": "train_loader",
    "train_dataloaders": "train_loader",
    "val_dataloader": "val_loader",
    "val_dataloaders": "val_loader",
    "writer": "hooks",
    "writers": "hooks",
}
"""Keys of a run file, with the section, or arguments of the Trainer, by the name in another framework."""

ARGUMENT_NAMES = {"loss": "loss_fn"}
"""Arguments whose name differs from that of the key of a run file."""


def find_equivalent(name: str, arguments: Collection[str]) -> str | None:
    """Return the argument that corresponds to an argument of another framework, or None.

    Args:
        name: Name in another framework, or of a key of a run file.
        arguments: Names of the accepted arguments.
    """
    key = FRAMEWORK_KEYS.get(name, name).rpartition(".")[2]
    return next((candidate for candidate in (key, ARGUMENT_NAMES.get(key)) if candidate in arguments), None)
