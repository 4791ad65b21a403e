"""Checkpoint files: atomic writes, checksums, contents, restore and sharded checkpoints.

`atomic_files` writes and verifies single files, and `load` loads them as data. `state` builds and restores the
contents with `plain_data`, `components`, `named_weights`, `loop_state`, `hook_states` and `rank_state`; `reshard`
adapts them to another world size.
`generations`, `sharded` and `store` implement checkpoints of models that are sharded across ranks. `saver` defines the
protocol of a checkpoint hook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookbus._utils.lazy import lazy_names

# Type checkers and IDEs do not evaluate `__getattr__`, so they get the same names as static imports.
if TYPE_CHECKING:
    from hookbus.checkpoint.atomic_files import atomic_write as atomic_write
    from hookbus.checkpoint.atomic_files import write_json as write_json
    from hookbus.checkpoint.saver import CheckpointSaver as CheckpointSaver
    from hookbus.checkpoint.state import read_checkpoint as read_checkpoint
    from hookbus.checkpoint.state import write_checkpoint as write_checkpoint

_MODULES = {
    "CheckpointSaver": "hookbus.checkpoint.saver",
    "atomic_write": "hookbus.checkpoint.atomic_files",
    "read_checkpoint": "hookbus.checkpoint.state",
    "write_checkpoint": "hookbus.checkpoint.state",
    "write_json": "hookbus.checkpoint.atomic_files",
}
__all__ = sorted(_MODULES)
__getattr__ = lazy_names(__name__, _MODULES)
