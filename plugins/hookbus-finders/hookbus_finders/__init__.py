"""Finders for hookbus: a range test for the learning rate, and a search for the largest batch size."""

from hookbus_finders.batch_size_finder import BatchSizeFinderHook
from hookbus_finders.config import BatchSizeFinderConfig, LRFinderConfig
from hookbus_finders.lr_finder import LRFinderHook
from hookbus_finders.lr_range import RangeTest
from hookbus_finders.size_search import SizeSearch

__all__ = [
    "BatchSizeFinderConfig",
    "BatchSizeFinderHook",
    "LRFinderConfig",
    "LRFinderHook",
    "RangeTest",
    "SizeSearch",
]
