"""What the Trainer is made of: steps, updates, schedulers, validation, and data in an order that can be taken up again.

`data`, `loaders`, `seeding`, `rng`, `train_shard` and `eval_shard` are the data and its random streams; `steps`,
`batches`, `outputs`, `optimizer` and `scheduling` one iteration; `evaluation`, `scores` and `metric_states` the
judging; `parallel` the same with several processes.
"""
