"""Behind the state of a run: files that are whole or not there, and what is in them.

`files` writes and checks one file; `reading` loads one as data; `plain`, `hook_states` and `parts` say what goes into
it, `restoring` and `world_size` how it comes back; `generations`, `sharded`, `shards` and `sweeping` are for weights
that are spread over several processes.
"""
