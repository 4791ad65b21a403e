"""Settings of the predictions hook."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import PurePath
from typing import Literal

from pydantic import Field, field_validator

from hookbus import HookConfig
from hookbus_predictions.formats import WRITERS


class PredictionsConfig(HookConfig):
    """File, interval and merging of predictions."""

    frequency_error = "every batch is written. Remove `frequency`."
    when_error = "every batch is written. Remove `when`."

    file: str = Field(
        default="predictions.pt",
        description="File of the predictions, relative to the work directory. Its suffix is the format: `.pt`, `.npz`, "
        "`.csv`, `.jsonl` or `.parquet`.",
    )
    interval: Literal["batch", "epoch", "batch_and_epoch"] = Field(
        default="epoch",
        description="`epoch`: one file at the end of a loader; `batch`: a file for each batch, in a directory; "
        "`batch_and_epoch`: both.",
    )
    merge: bool = Field(
        default=True,
        description="Write the predictions of all ranks to one file, in the order of the data; false: a file for each "
        "rank.",
    )
    overwrite: bool = Field(
        default=False,
        description="Replace earlier predictions of the same file when the new ones are complete; false: they are "
        "an error before the run.",
    )

    @field_validator("file")
    @classmethod
    def _check_format(cls, value: str) -> str:
        suffix = PurePath(value).suffix
        if suffix not in WRITERS or not PurePath(value).stem:
            raise ValueError(f"should be a file with one of the suffixes {', '.join(WRITERS)}, got {value!r}.")
        if suffix == ".parquet" and find_spec("pyarrow") is None:
            raise ValueError(
                f"Parquet requires pyarrow, which is not installed, got {value!r}. Run: pip install "
                "'hookbus-predictions[parquet]', or choose another suffix."
            )
        return value
