"""Datasets, loaders and random number generators of a training run.

`loaders` reads and copies data loaders, and `resumable_loader` resumes them at any batch. `seeded_dataset`
derives the order and the randomness of samples from the seed. `train_shard` and `eval_shard` split the data across
ranks. `batches` contains the operations on a batch, `rng` the state of the generators, and `workers` the worker
processes.
"""
