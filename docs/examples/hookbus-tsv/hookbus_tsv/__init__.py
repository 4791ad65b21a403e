"""A logging backend that writes tab-separated values."""

from hookbus_tsv.hook import TsvHook as TsvHook
