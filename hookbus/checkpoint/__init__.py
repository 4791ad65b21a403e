"""Checkpoint files: atomic writes, checksums, contents, restore and sharded checkpoints.

`files` writes and verifies single files, and `reading` loads them as data. `plain`, `hook_states` and `parts` build
the contents; `restoring` and `world_size` restore them. `generations`, `sharded`, `shards` and `sweeping` implement
checkpoints of models that are sharded across ranks.
"""
