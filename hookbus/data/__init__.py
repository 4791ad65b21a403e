"""Datasets, loaders and random number generators of a training run.

`resumable_loader` resumes loaders at any batch: `seeded_loader` copies map-style loaders, with the order of
`seeded_sampler` and the samples of `seeded_dataset`, and `iterated_loaders` positions all others. `loaders` reads and
copies data loaders. `train_shard` and `eval_shard` split the data across ranks.
`batches` and `collections` contain the operations on a batch, `batch_sizes` and `sized_batches` determine its number
of samples. `rng` contains the state of the generators, and `workers` the worker processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookbus._utils import lazy_names

# Type checkers and IDEs do not evaluate `__getattr__`, so they get the same names as static imports.
if TYPE_CHECKING:
    from hookbus.data.batches import get_targets as get_targets
    from hookbus.data.batches import move_to_device as move_to_device
    from hookbus.data.loaders import iter_datasets as iter_datasets
    from hookbus.data.loaders import loader_length as loader_length
    from hookbus.data.rng import derive_seed as derive_seed

_MODULES = {
    "derive_seed": "hookbus.data.rng",
    "get_targets": "hookbus.data.batches",
    "iter_datasets": "hookbus.data.loaders",
    "loader_length": "hookbus.data.loaders",
    "move_to_device": "hookbus.data.batches",
}
__all__ = sorted(_MODULES)
__getattr__ = lazy_names(__name__, _MODULES)
