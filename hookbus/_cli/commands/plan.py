"""Command `hookbus plan`."""

from __future__ import annotations

from dataclasses import asdict

from hookbus._cli.console import handle_errors, print_json
from hookbus._cli.options import File, Json, Overrides
from hookbus._cli.trainers import build_trainer


def plan(file: File, overrides: Overrides = None, json_: Json = False) -> None:
    """Show what will fire when and what will be written, without training.

    The counts are those of a training that starts from scratch and is not stopped. The datasets are built and not read.
    """
    with handle_errors():
        from hookbus._cli.plan_output import print_plan
        from hookbus.trainer.plan import build_plan

        planned = build_plan(build_trainer(file, overrides))
        if json_:
            print_json({**asdict(planned), "total": planned.total})
        else:
            print_plan(planned)
