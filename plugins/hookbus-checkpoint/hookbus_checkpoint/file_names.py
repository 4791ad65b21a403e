"""Names of checkpoints: templates with fields, and metrics as parts of file names."""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections.abc import Callable, Iterator

from hookbus import Run
from hookbus.errors import MetricError
from hookbus.metrics import Metrics, is_training_metric, resolve_metric_name

SUFFIX = ".pth"
ITERATION_TEMPLATE = "iter_{}.pth"
BEST_PREFIX = "best_"
RESERVED_TEXT = r'/ \ : * ? " < > |'
RESERVED_CHARACTERS = frozenset(RESERVED_TEXT.replace(" ", ""))
"""Characters that a file name cannot contain on Linux or Windows."""
MAX_STEM_BYTES = 180
"""Maximum length in bytes. File names have at most 255 bytes, and temporary files add a prefix and suffix."""
MAX_NAME_BYTES = 100
"""Maximum length in bytes of the name of a periodic checkpoint, which that of a best checkpoint may contain."""
NUMBER_FIELDS = frozenset({"", "0"})
"""Fields of the number of the checkpoint: `{}`."""
CLOCK_FIELDS = ("epoch", "iter", "step", "sample")
"""Fields of the counts of completed units; all other names are metrics."""

_SAMPLE_NUMBERS = (1, 2, 10, 11, 1_000_000, 1_000_001)
_SAMPLE_METRICS = (0.5, -1e-30, 1e30, math.inf, math.nan)


def get_file_stem(metric: str, limit: int = MAX_STEM_BYTES) -> str:
    """Return the name of a metric for use in a file name.

    Letters and digits of any script are kept, other characters are replaced by an underscore.

    Args:
        metric: Name of the metric.
        limit: Maximum length in bytes in UTF-8.

    Returns:
        A name that is not empty.
    """
    # NFC, so that the composed and the decomposed form of a character result in the same file.
    stem = re.sub(r"[^\w.-]+", "_", unicodedata.normalize("NFC", metric)).strip("._") or "metric"
    # The limit counts bytes, so the cut may split a character; `ignore` drops the incomplete one.
    return stem.encode()[:limit].decode(errors="ignore")


def get_fields(template: str) -> list[str]:
    """Return the names of the fields of a template.

    Raises:
        ValueError: If the template is malformed, or contains a conversion such as `!r` or nested fields.
    """
    return [field for _, field, _ in _parse(template) if field is not None]


def format_name(template: str, number: int, get_value: Callable[[str], float]) -> str:
    """Return the name for a template.

    Args:
        template: Template such as `{epoch}-{val_loss:.2f}.pth`.
        number: Value of `{}`.
        get_value: Function that returns the value of a field with a name.

    Raises:
        ValueError: If the template or a format is invalid.
    """
    # Not `str.format`, for which `{map.50}` is an attribute.
    parts = []
    for literal, field, spec in _parse(template):
        value = None if field is None else number if field in NUMBER_FIELDS else get_value(field)
        parts += [literal, "" if value is None else format(value, spec)]
    return "".join(parts)


def check_template(template: str, *, by_epoch: bool) -> str:
    """Check a template, and add the suffix `.pth` to one without any.

    Args:
        template: Template of a file name.
        by_epoch: Whether the names have to be different for each epoch; otherwise for each iteration.

    Raises:
        ValueError: If it does not describe file names that are valid on all systems, or numbers share a name.
    """
    completed = template
    try:
        if "." not in "".join(literal for literal, _, _ in _parse(template)):
            completed = template + SUFFIX
        is_valid = _is_injective(completed, by_epoch=by_epoch) and all(map(_is_valid_name, _iter_samples(completed)))
    except (ValueError, TypeError):
        is_valid = False
    if not is_valid:
        counts = _get_identifying_counts(by_epoch=by_epoch)
        raise ValueError(
            f"must be a file name that ends with .pth, starts neither with a dot nor with {BEST_PREFIX}, contains one "
            f"{{}} for the number or one of {', '.join(f'{{{name}}}' for name in counts)}, formats that apply to their "
            f"fields, at most {MAX_NAME_BYTES} bytes, and none of the characters {RESERVED_TEXT}, got {template!r}. "
            "Set a name such as 'epoch_{}.pth' or '{epoch}-{val_loss:.2f}.pth'."
        )
    return completed


def _parse(template: str) -> Iterator[tuple[str, str | None, str]]:
    for literal, field, spec, conversion in string.Formatter().parse(template):
        if conversion is not None or "{" in (spec or ""):
            raise ValueError(f"conversions and nested fields are not supported, got {template!r}")
        yield literal, field, spec or ""


def _get_identifying_counts(*, by_epoch: bool) -> tuple[str, ...]:
    # Several iterations belong to one epoch, and the number of samples of a batch may be unknown.
    return ("epoch", "iter", "step") if by_epoch else ("iter", "step")


def _is_injective(template: str, *, by_epoch: bool) -> bool:
    """Whether different numbers result in different names, whatever the metrics are."""
    fields = get_fields(template)
    if sum(field in NUMBER_FIELDS for field in fields) > 1:
        return False
    # A format such as `{:.0e}` is valid but rounds, so distinctness is tested on neighboring numbers.
    constant = set(fields) - {*_get_identifying_counts(by_epoch=by_epoch)}
    names = {format_name(template, n, lambda field, n=n: 1 if field in constant else n) for n in _SAMPLE_NUMBERS}  # type: ignore[misc]
    return len(names) == len(_SAMPLE_NUMBERS)


def _iter_samples(template: str) -> Iterator[str]:
    for metric in _SAMPLE_METRICS:
        yield format_name(template, 7, lambda field, m=metric: 7 if field in CLOCK_FIELDS else m)  # type: ignore[misc]


def _is_valid_name(name: str) -> bool:
    # A leading dot would hide the checkpoint, and `best_` is the prefix of best checkpoints. A checkpoint may be copied
    # to another system, so the name has to be valid on all of them.
    is_named = name.endswith(SUFFIX) and not name.startswith((".", BEST_PREFIX))
    is_portable = name.isprintable() and RESERVED_CHARACTERS.isdisjoint(name)
    return is_named and is_portable and len(name.encode()) <= MAX_NAME_BYTES


def get_field(run: Run, means: Metrics, field: str) -> float:
    """Return the value of a field with a name.

    Args:
        run: The run.
        means: Means of the training metrics of the epoch.
        field: Name of a count or a metric.

    Raises:
        MetricError: If the metric is unknown or ambiguous. The message lists the available metrics.
    """
    if field in CLOCK_FIELDS:
        count: int = getattr(run, f"{field}s_done")
        return count
    metrics = means if is_training_metric(field) else run.metrics.results
    try:
        return metrics[resolve_metric_name(field, metrics)]
    except MetricError as error:
        problem = f"filename_tmpl: the name of the checkpoint requires the metric {field!r}"
        raise MetricError(f"{problem}. {error} Remove the field, or save after a validation provides it.") from None
