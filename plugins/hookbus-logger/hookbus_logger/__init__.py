"""Console log, JSON lines and CSV logs, and progress bar for hookbus."""

from hookbus_logger.config import CsvConfig, JsonlConfig, LoggerConfig, ProgressConfig
from hookbus_logger.csv_hook import CsvHook
from hookbus_logger.json_lines import read_jsonl
from hookbus_logger.jsonl import JsonlHook
from hookbus_logger.logger import LoggerHook
from hookbus_logger.progress import ProgressHook

__all__ = [
    "CsvConfig",
    "CsvHook",
    "JsonlConfig",
    "JsonlHook",
    "LoggerConfig",
    "LoggerHook",
    "ProgressConfig",
    "ProgressHook",
    "read_jsonl",
]
