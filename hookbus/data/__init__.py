"""Datasets, loaders and random number generators of a training run.

`resumable_loader` resumes loaders at any batch: it copies map-style loaders, with the order of `samplers` and the
samples of `seeded_dataset`, and reads all others by `iterated_loaders`. `samplers` also splits the data across ranks.
`loaders` reads and copies data loaders, `resizing` with another batch size. `batches` contains the operations on a
batch, and `batch_sizes` determines its number of samples. `rng` contains the state of the generators, and `workers` the
worker processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookbus._utils import lazy_names, map_names

# Type checkers and IDEs do not evaluate `__getattr__`, so they get the same names as static imports.
if TYPE_CHECKING:
    from hookbus.data.batches import get_targets as get_targets
    from hookbus.data.batches import move_to_device as move_to_device
    from hookbus.data.limited_loader import limit_loader as limit_loader
    from hookbus.data.loaders import iter_datasets as iter_datasets
    from hookbus.data.loaders import loader_length as loader_length
    from hookbus.data.rng import derive_seed as derive_seed
    from hookbus.data.rng import get_rng_state as get_rng_state
    from hookbus.data.rng import get_sampler_state as get_sampler_state
    from hookbus.data.rng import set_rng_state as set_rng_state
    from hookbus.data.rng import set_sampler_state as set_sampler_state

_MODULES = map_names(
    {
        "hookbus.data.batches": "get_targets move_to_device",
        "hookbus.data.limited_loader": "limit_loader",
        "hookbus.data.loaders": "iter_datasets loader_length",
        "hookbus.data.rng": "derive_seed get_rng_state get_sampler_state set_rng_state set_sampler_state",
    }
)
__all__ = sorted(_MODULES)
__getattr__ = lazy_names(__name__, _MODULES)
