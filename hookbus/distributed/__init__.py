"""Distributed training: process group, collective communication and sharded models.

`process_group` initializes the process group from the variables of the launcher. `collectives` defines the operations
that a run uses, and `process_collectives` implements them. `fsdp` shards a
model, `sharding` describes and converts sharded tensors, and `unwrap` returns the model inside a wrapper, and names
without the prefixes of wrappers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookbus._utils import lazy_names, map_names

# Type checkers and IDEs do not evaluate `__getattr__`, so they get the same names as static imports.
if TYPE_CHECKING:
    from hookbus.distributed.collectives import Collectives as Collectives
    from hookbus.distributed.process_group import is_main as is_main
    from hookbus.distributed.process_group import rank as rank
    from hookbus.distributed.process_group import world_size as world_size
    from hookbus.distributed.sharding import has_sharded_tensors as has_sharded_tensors
    from hookbus.distributed.sharding import sharding_of as sharding_of
    from hookbus.distributed.sharding import to_full_tensors as to_full_tensors
    from hookbus.distributed.unwrap import clean_names as clean_names
    from hookbus.distributed.unwrap import match_names as match_names
    from hookbus.distributed.unwrap import named_modules as named_modules
    from hookbus.distributed.unwrap import named_parameters as named_parameters
    from hookbus.distributed.unwrap import strip_wrappers as strip_wrappers
    from hookbus.distributed.unwrap import unwrap_model as unwrap_model

_MODULES = map_names(
    {
        "hookbus.distributed.collectives": "Collectives",
        "hookbus.distributed.process_group": "is_main rank world_size",
        "hookbus.distributed.sharding": "has_sharded_tensors sharding_of to_full_tensors",
        "hookbus.distributed.unwrap": (
            "clean_names match_names named_modules named_parameters strip_wrappers unwrap_model"
        ),
    }
)
__all__ = sorted(_MODULES)
__getattr__ = lazy_names(__name__, _MODULES)
