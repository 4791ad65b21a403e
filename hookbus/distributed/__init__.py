"""Training on several processes: process group, collective communication and sharded models.

`process_group` reads the launcher's variables. `collectives` defines the operations that a run uses, and
`process_collectives` implements them with the error propagation of `error_store`. `fsdp` shards a model, `sharding`
describes and converts sharded tensors, and `unwrap` returns the model inside a wrapper.
"""
