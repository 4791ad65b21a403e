"""An isolated, offline W&B environment without the settings and credentials of the user."""

import os
import sys

import pytest


@pytest.fixture(scope="session", autouse=True)
def isolated_environment(tmp_path_factory):
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
def user_run(isolated_environment):
    """Return an active run of the user, which also keeps the process of W&B running (its start takes a second)."""
    import wandb

    original = sys.exit, sys.excepthook
    with wandb.init(dir=isolated_environment, reinit="create_new") as run:
        sys.exit, sys.excepthook = original  # other tests check the exit of a process
        del os.environ["WANDB_SERVICE"]  # trainings that tests start and kill must not use the process of this run
        yield run
