"""Table of the tests that run the rows of docs/coming-from.md."""

from __future__ import annotations

from tests.migration_page import RowTests

covers = RowTests()

covers.omit(
    "`TQDMProgressBar` in a notebook",
    "`logger` and `progress`, which also display a table of the epochs",
    "requires a kernel; tests/test_notebooks.py has one, and the bar is that of `RichProgressBar`",
)
covers.omit(
    "`DDPStrategy`, `FSDPStrategy`",
    "`training.distributed: ddp` or `fsdp2`",
    "several ranks; tests/distributed runs the strategies of hookbus",
)
covers.omit(
    "`sync_batchnorm`",
    "`sync_norm` synchronizes the state of the layers, not the batch statistics",
    "several ranks; the page names the difference",
)
