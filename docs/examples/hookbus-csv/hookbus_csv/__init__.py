"""A logging backend that writes comma-separated values."""

from hookbus_csv.hook import CsvHook as CsvHook
