"""Construction of the trainer of a run file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hookbus._cli.redaction import hide_secrets_of

if TYPE_CHECKING:
    from hookbus.trainer.trainer import Trainer


def build_trainer(file: Path, overrides: Sequence[str] | None, *, overwrite: bool = False) -> Trainer:
    """Build the trainer of a run file, whose secrets the command does not print.

    Raises:
        ConfigError: If the file is invalid. The error lists all problems.
    """
    from hookbus.trainer.from_file import trainer_from_file
    from hookbus.trainer.trainer import Trainer

    trainer = trainer_from_file(Trainer, file, overrides or (), overwrite=overwrite)
    hide_secrets_of(trainer)
    return trainer
