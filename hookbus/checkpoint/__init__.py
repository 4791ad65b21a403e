"""Checkpoint files: atomic writes, checksums, contents, restore and sharded checkpoints.

`atomic_files` writes and verifies single files, and `load` loads them as data. `state` builds and restores the
contents with `run_state`, `contents`, `plain_data`, `weights`, `components`, `hook_states` and `rank_state`.
`generations`, `sharded` and `store` implement checkpoints of models that are sharded across ranks. `saver` defines the
protocol of a checkpoint hook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookbus._utils import lazy_names, map_names

# Type checkers and IDEs do not evaluate `__getattr__`, so they get the same names as static imports.
if TYPE_CHECKING:
    from hookbus._training.lr_scheduler import check_scheduler_steps as check_scheduler_steps
    from hookbus._training.lr_scheduler import get_first_changes as get_first_changes
    from hookbus._training.lr_scheduler import load_scheduler as load_scheduler
    from hookbus._utils import schema as schema
    from hookbus.checkpoint.atomic_files import atomic_write as atomic_write
    from hookbus.checkpoint.atomic_files import commit_file as commit_file
    from hookbus.checkpoint.atomic_files import make_temporary_name as make_temporary_name
    from hookbus.checkpoint.atomic_files import remove_temporary_files as remove_temporary_files
    from hookbus.checkpoint.atomic_files import write_json as write_json
    from hookbus.checkpoint.contents import wrap_invalid_data as wrap_invalid_data
    from hookbus.checkpoint.run_state import get_run_state as get_run_state
    from hookbus.checkpoint.run_state import set_run_state as set_run_state
    from hookbus.checkpoint.saver import BestSaver as BestSaver
    from hookbus.checkpoint.saver import CheckpointSaver as CheckpointSaver
    from hookbus.checkpoint.saver import StopSaver as StopSaver
    from hookbus.checkpoint.sidecars import Sidecar as Sidecar
    from hookbus.checkpoint.size import estimate_checkpoint_size as estimate_checkpoint_size
    from hookbus.checkpoint.state import read_checkpoint as read_checkpoint
    from hookbus.checkpoint.state import write_checkpoint as write_checkpoint
    from hookbus.checkpoint.store import CheckpointStore as CheckpointStore
    from hookbus.checkpoint.weights import check_averages as check_averages
    from hookbus.checkpoint.weights import check_compatible as check_compatible
    from hookbus.checkpoint.weights import flatten_weights as flatten_weights

_MODULES = map_names(
    {
        "hookbus._training.lr_scheduler": "check_scheduler_steps get_first_changes load_scheduler",
        "hookbus._utils.schema": "schema",
        "hookbus.checkpoint.atomic_files": (
            "atomic_write commit_file make_temporary_name remove_temporary_files write_json"
        ),
        "hookbus.checkpoint.contents": "wrap_invalid_data",
        "hookbus.checkpoint.run_state": "get_run_state set_run_state",
        "hookbus.checkpoint.saver": "BestSaver CheckpointSaver StopSaver",
        "hookbus.checkpoint.sidecars": "Sidecar",
        "hookbus.checkpoint.size": "estimate_checkpoint_size",
        "hookbus.checkpoint.state": "read_checkpoint write_checkpoint",
        "hookbus.checkpoint.store": "CheckpointStore",
        "hookbus.checkpoint.weights": "check_averages check_compatible flatten_weights",
    }
)
__all__ = sorted(_MODULES)
__getattr__ = lazy_names(__name__, _MODULES)
