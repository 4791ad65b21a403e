"""Commands that evaluate a trained model: `hookbus test` and `hookbus predict`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hookbus._cli.console import error_console, handle_errors, print_json
from hookbus._cli.options import File, Json, Overrides
from hookbus._cli.output import print_metrics
from hookbus._cli.output_file import check_output
from hookbus._cli.trainers import build_trainer
from hookbus.errors import ConfigError, HookbusError

if TYPE_CHECKING:
    from hookbus.trainer.trainer import Trainer


def test(
    file: File,
    overrides: Overrides = None,
    checkpoint: Annotated[Path | None, typer.Option(help="The checkpoint to test. Default: the newest.")] = None,
    json_: Json = False,
) -> None:
    """Test a trained model, with averaged weights and hook states if the checkpoint contains them.

    If the dataset has no test split, the validation split is used.
    """
    with handle_errors():
        trainer = _load_trainer(file, overrides, checkpoint, "test")
        trainer.test_loader = trainer.test_loader if trainer.test_loader is not None else trainer.val_loader
        if json_:
            trainer.register_service("console", error_console())  # standard output contains only the JSON document
        metrics = trainer.test()
        if json_:
            tested = {"checkpoint": str(trainer.load_from), "weights": trainer.load_weights}
            print_json({**tested, "hooks": trainer.loaded_hooks, "metrics": dict(metrics)})
        else:
            print_metrics(str(trainer.load_from), trainer.load_weights, trainer.loaded_hooks, metrics)


def predict(
    file: File,
    overrides: Overrides = None,
    checkpoint: Annotated[Path | None, typer.Option(help="The checkpoint to load. Default: the newest.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to write: .pt, .npz, .csv, .jsonl or .parquet. Default: that of the hook `predictions`, "
            "`predictions.pt` in the work directory.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove earlier predictions in the file.")] = False,
) -> None:
    """Write the predictions of a trained model, with averaged weights if the checkpoint contains them.

    The split `predict` of the dataset is predicted; without one, the test split, else the validation split. Requires
    hookbus-predictions.
    """
    with handle_errors():
        check_output(output)
        trainer = _load_trainer(file, overrides, checkpoint, "predict")
        trainer.predict_loader = next(
            (
                loader
                for loader in (trainer.predict_loader, trainer.test_loader, trainer.val_loader)
                if loader is not None
            ),
            None,
        )
        _add_predictions_hook(trainer, output, overwrite=overwrite)
        trainer.predict(return_predictions=False)


# -- helpers ---------------------------------------------------------------------------------------


def _load_trainer(
    file: Path, overrides: Sequence[str] | None, checkpoint: Path | None, mode: Literal["test", "predict"]
) -> Trainer:
    """Build the trainer of a run file, with the weights and hook states of a checkpoint."""
    from hookbus._config.factories import find_file_problem
    from hookbus.trainer.initial_weights import load_for_test

    if checkpoint is not None and (problem := find_file_problem(str(checkpoint))):
        raise ConfigError(f"--checkpoint: {problem}")
    trainer = build_trainer(file, [*(overrides or ()), "resume=never", "load_from=null"])
    load_for_test(trainer, checkpoint or _newest_checkpoint(trainer, mode))
    return trainer


def _add_predictions_hook(trainer: Trainer, output: Path | None, *, overwrite: bool) -> None:
    """Register the hook that writes predictions, unless the run file has one; the options replace its settings."""
    from hookbus._config.hooks import build_hook, register_defaults
    from hookbus.hook import Hook

    options: dict[str, Any] = {"overwrite": True} if overwrite else {}
    if output is not None:
        options["file"] = str(output.absolute())
    if not options:
        register_defaults(trainer.bus, ["predictions"])
        return
    added = build_hook({"type": "predictions", **options})
    for name, hook in list(trainer.bus.hooks.items()):
        if isinstance(hook, Hook) and type(hook) is type(added):
            settings = hook.config.model_dump(exclude_unset=True)
            added = build_hook({"type": "predictions", **settings, **options})
            trainer.bus.unregister(name)
    trainer.bus.register(added)


def _newest_checkpoint(trainer: Trainer, mode: Literal["test", "predict"]) -> Path:
    from hookbus.checkpoint.sidecars import list_newest_first
    from hookbus.trainer.initial_weights import find_checkpoint_directory

    directory = find_checkpoint_directory(trainer)
    checkpoints = [] if directory is None else list_newest_first(directory)
    if not checkpoints:
        purpose = "to test" if mode == "test" else "to predict with"
        raise HookbusError(f"{directory} contains no checkpoint {purpose}. Train first, or pass --checkpoint.")
    return checkpoints[0]
