"""Writer hooks: the base class, its queue and thread, and the conversion of values for backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookbus._utils import lazy_names, map_names

# Type checkers and IDEs do not evaluate `__getattr__`, so they get the same names as static imports.
if TYPE_CHECKING:
    from hookbus._utils.files import open_for_writing as open_for_writing
    from hookbus._utils.files import open_regular_file as open_regular_file
    from hookbus._utils.files import read_regular_file as read_regular_file
    from hookbus._utils.html import build_html_table as build_html_table
    from hookbus._utils.html import wrap_html as wrap_html
    from hookbus._utils.numbers import format_clock_time as format_clock_time
    from hookbus._utils.numbers import format_elapsed_time as format_elapsed_time
    from hookbus._utils.numbers import format_number as format_number
    from hookbus._utils.numbers import format_quantity as format_quantity
    from hookbus._utils.redaction import redact as redact
    from hookbus._utils.redaction import redact_config as redact_config
    from hookbus._utils.secrets import is_secret as is_secret
    from hookbus.writers.append_only_file import AppendOnlyFile as AppendOnlyFile
    from hookbus.writers.hook import WriterHook as WriterHook
    from hookbus.writers.host_copies import to_finite_array as to_finite_array
    from hookbus.writers.images import to_pil_image as to_pil_image
    from hookbus.writers.metric_recorder import MetricRecorder as MetricRecorder
    from hookbus.writers.metric_recorder import WriterConfig as WriterConfig
    from hookbus.writers.optimizer_values import get_group_names as get_group_names
    from hookbus.writers.optimizer_values import get_optimizer_values as get_optimizer_values
    from hookbus.writers.optimizer_values import name_optimizer_values as name_optimizer_values
    from hookbus.writers.output_files import OutputFiles as OutputFiles
    from hookbus.writers.output_files import claim_directory as claim_directory
    from hookbus.writers.output_files import image_directory as image_directory
    from hookbus.writers.output_files import is_plain_file as is_plain_file
    from hookbus.writers.output_files import iter_numbered_paths as iter_numbered_paths
    from hookbus.writers.output_files import resolve_output_path as resolve_output_path
    from hookbus.writers.output_files import set_aside as set_aside
    from hookbus.writers.planned_file import PlannedFile as PlannedFile
    from hookbus.writers.tags import flatten as flatten
    from hookbus.writers.tags import sanitize_name as sanitize_name
    from hookbus.writers.writer import RecordKey as RecordKey
    from hookbus.writers.writer import Writer as Writer

_MODULES = map_names(
    {
        "hookbus._utils.files": "open_for_writing open_regular_file read_regular_file",
        "hookbus._utils.html": "build_html_table wrap_html",
        "hookbus._utils.numbers": "format_clock_time format_elapsed_time format_number format_quantity",
        "hookbus._utils.redaction": "redact redact_config",
        "hookbus._utils.secrets": "is_secret",
        "hookbus.writers.append_only_file": "AppendOnlyFile",
        "hookbus.writers.hook": "WriterHook",
        "hookbus.writers.host_copies": "to_finite_array",
        "hookbus.writers.images": "to_pil_image",
        "hookbus.writers.metric_recorder": "MetricRecorder WriterConfig",
        "hookbus.writers.optimizer_values": "get_group_names get_optimizer_values name_optimizer_values",
        "hookbus.writers.output_files": (
            "OutputFiles claim_directory image_directory is_plain_file iter_numbered_paths resolve_output_path "
            "set_aside"
        ),
        "hookbus.writers.planned_file": "PlannedFile",
        "hookbus.writers.tags": "flatten sanitize_name",
        "hookbus.writers.writer": "RecordKey Writer",
    }
)
__all__ = sorted(_MODULES)
__getattr__ = lazy_names(__name__, _MODULES)
