"""The numbers of a training as comma-separated values."""

from hookbus_csv.hook import CsvHook as CsvHook
