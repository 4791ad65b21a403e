"""Console log, JSON lines log and progress bar for hookbus."""

from hookbus_logger.config import JsonlConfig, LoggerConfig, ProgressConfig
from hookbus_logger.json_lines import read_jsonl
from hookbus_logger.jsonl import JsonlHook
from hookbus_logger.logger import LoggerHook
from hookbus_logger.progress import ProgressHook

__all__ = [
    "JsonlConfig",
    "JsonlHook",
    "LoggerConfig",
    "LoggerHook",
    "ProgressConfig",
    "ProgressHook",
    "read_jsonl",
]
