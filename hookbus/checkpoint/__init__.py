"""Checkpoint files: atomic writes, checksums, contents, restore and sharded checkpoints.

`atomic_files` writes and verifies single files, and `load` loads them as data. `state` builds and restores the
contents with `plain_data`, `hook_states` and `rank_state`; `restore` and `reshard` load them into a run.
`generations`, `sharded` and `store` implement checkpoints of models that are sharded across ranks. `saver` defines the
protocol of a checkpoint hook.
"""
