"""W&B as it is on a new machine, offline: nothing of the user's own is read, and nothing is written to it."""

import os
import sys

import pytest


@pytest.fixture(scope="session", autouse=True)
def new_machine(tmp_path_factory):
    home = tmp_path_factory.mktemp("wandb")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        for name in ("CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
            patch.setenv(f"WANDB_{name}", str(home))
        patch.setenv("NETRC", str(home / "netrc"))
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        patch.setenv("WANDB_SILENT", "true")
        yield home


@pytest.fixture(scope="session", autouse=True)
def run_of_the_user(new_machine):
    """A run that goes on, with which the process of W&B does: it takes a second to start."""
    import wandb

    ends = sys.exit, sys.excepthook
    with wandb.init(dir=new_machine, reinit="create_new") as run:
        sys.exit, sys.excepthook = ends  # other tests look at where a process has ended
        del os.environ["WANDB_SERVICE"]  # trainings that tests start and kill are not to go through this one's process
        yield run
