"""Record of the configuration of a training: `config.yaml`, the event `log_config`, and the hash in checkpoints.

All of them describe the configuration that applies: with the hooks of the run and their defaults, and in a resumed run
with the settings that its checkpoint restores.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus._run.directory_lock import explain_write_errors
from hookbus._run.recorded_run import CONFIG, RecordedRun
from hookbus._run.recorded_settings import read_config
from hookbus.checkpoint.sidecars import read_sidecar
from hookbus.errors import HookbusError, WorkDirError

if TYPE_CHECKING:
    from hookbus._run.resume import Resume
    from hookbus._run.run import Run

RESTORED = {"optimizer": "optimizer", "scheduler": "scheduler", "seed": "loop"}
"""Sections that a checkpoint restores, each with the key of the checkpoint that contains its state."""


def check_config_file(run: Run) -> None:
    """Raise if the run would write its configuration to a file that no run has written.

    Raises:
        WorkDirError: If there is such a file.
    """
    if run.mode != "train" or run.work_dir is None or not hasattr(run.config, "to_yaml"):
        return
    if problem := run.work_dir.find_config_problem(run.id):
        raise WorkDirError(problem)


def record_config(run: Run, source: Resume | None) -> None:
    """Resolve the configuration of a training, write it to its work directory, and emit `log_config`.

    A run that resumes writes the file later, in `update_config`.

    Args:
        run: The run, after the listeners of `before_run`, which may register hooks.
        source: What the run resumes from.
    """
    if run.mode != "train" or not run.config:
        return
    resolve = getattr(run.config, "resolve_for_run", None)  # a configuration in Python has no such method
    if resolve is not None:
        # Not the hooks that other hooks have registered.
        hooks = {name: member.plugin for name, member in run.bus.pm.members.items() if not member.owner}
        restored: dict[str, Any] = {}
        if isinstance(source, (str, Path)) and source != "never":
            restored = run.ranks.call_on_main("the restored settings", lambda: _read_restored(run, Path(source)))
        run.resolved_config, messages = resolve(hooks, restored)
        for message in messages:
            run.logger.warning("%s", message)
    if source == "never":
        _write_config(run)
    run.bus.fire("log_config")


def update_config(run: Run) -> None:
    """Write the configuration of a training that was resumed, unless it has nothing left to train.

    Args:
        run: The run, whose checkpoint is restored.
    """
    if run.mode != "train" or run.work_dir is None or not run.config:
        return
    if not (run.resumed and run.clock.is_at_limit and os.path.lexists(run.work_dir.path / CONFIG)):
        _write_config(run)


def _write_config(run: Run) -> None:
    to_yaml = getattr(run.resolved_config or run.config, "to_yaml", None)
    if run.work_dir is not None and run.ranks.is_main and to_yaml is not None:
        with explain_write_errors(run.work_dir.path):
            run.work_dir.write_config(to_yaml(), run.id)


def _read_restored(run: Run, path: Path) -> dict[str, Any]:
    """Return the recorded settings of the run that wrote a checkpoint, for the sections that the checkpoint restores.

    {} if its `config.yaml` is not found.
    """
    from hookbus.checkpoint.load import load_on_meta

    sidecar = read_sidecar(path)
    owner = "" if sidecar is None else sidecar.run
    directories = [*([] if run.work_dir is None else [run.work_dir.path]), *[*path.absolute().parents][:2]]
    directory = next((place for place in directories if owner and RecordedRun.read(place).run == owner), None)
    if directory is None:
        return {}
    try:
        checkpoint: Mapping[str, Any] = load_on_meta(path)
    except HookbusError:  # reported when the run resumes
        return {}
    recorded = read_config(directory)
    return {name: recorded[name] for name, key in RESTORED.items() if checkpoint.get(key) and name in recorded}
