"""Callback names of other frameworks and the corresponding points, for error messages."""

from __future__ import annotations

from collections.abc import Mapping

FRAMEWORK_ALIASES: Mapping[str, Mapping[str, str]] = {
    "Lightning": {
        "on_fit_start": "before_run",
        "on_fit_end": "after_run",
        "on_sanity_check_start": "before_val",
        "on_sanity_check_end": "after_val",
        "on_train_start": "before_train",
        "on_train_end": "after_train",
        "on_train_epoch_start": "before_epoch",
        "on_train_epoch_end": "after_epoch",
        "on_train_batch_start": "before_train_iter",
        "on_train_batch_end": "after_train_iter",
        "on_before_backward": "after_forward",
        "on_after_backward": "after_backward",
        "on_before_optimizer_step": "before_optimizer_step",
        "on_before_zero_grad": "after_optimizer_step",
        "on_validation_start": "before_val",
        "on_validation_end": "after_val",
        "on_validation_epoch_start": "before_val_epoch",
        "on_validation_epoch_end": "after_val_epoch",
        "on_validation_batch_start": "before_val_iter",
        "on_validation_batch_end": "after_val_iter",
        "on_test_start": "before_test",
        "on_test_end": "after_test",
        "on_test_epoch_start": "before_test_epoch",
        "on_test_epoch_end": "after_test_epoch",
        "on_test_batch_start": "before_test_iter",
        "on_test_batch_end": "after_test_iter",
        "on_save_checkpoint": "before_save_checkpoint",
        "on_load_checkpoint": "after_load_checkpoint",
    },
    "Hugging Face": {
        "on_train_begin": "before_train",
        "on_train_end": "after_train",
        "on_epoch_begin": "before_epoch",
        "on_epoch_end": "after_epoch",
        "on_step_begin": "before_train_iter",
        "on_step_end": "after_train_iter",
        "on_pre_optimizer_step": "before_optimizer_step",
        "on_optimizer_step": "after_optimizer_step",
        "on_evaluate": "after_val",
        "on_save": "after_save_checkpoint",
        "on_log": "log_scalars",
    },
    "Keras": {
        "on_train_begin": "before_train",
        "on_train_end": "after_train",
        "on_epoch_begin": "before_epoch",
        "on_epoch_end": "after_epoch",
        "on_train_batch_begin": "before_train_iter",
        "on_train_batch_end": "after_train_iter",
        "on_batch_begin": "before_train_iter",
        "on_batch_end": "after_train_iter",
    },
}
"""Callback names by framework, and the point that is emitted at the same moment; also listed in docs/coming-from.md."""


def find_framework_alias(name: str) -> tuple[str, str] | None:
    """Return the frameworks that define a callback name, and the corresponding point.

    Args:
        name: Name of a method, such as "on_train_batch_end".

    Returns:
        ("Lightning and Keras", "after_train_iter"), or None if no framework defines the name.
    """
    matches = {framework: names[name] for framework, names in FRAMEWORK_ALIASES.items() if name in names}
    return (" and ".join(matches), next(iter(matches.values()))) if matches else None
