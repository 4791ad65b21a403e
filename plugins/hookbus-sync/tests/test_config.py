from __future__ import annotations

from typing import Any

import pytest

from hookbus.errors import ConfigError
from hookbus_sync import SyncRandomSizeConfig, SyncRandomSizeHook


def test_default_sizes_are_around_640_and_change_every_10_iterations() -> None:
    config = SyncRandomSizeConfig()

    assert (config.ratio_range, config.img_scale, config.interval) == ((14, 26), (640, 640), 10)


def test_pairs_accept_lists() -> None:
    assert SyncRandomSizeHook({"ratio_range": [10, 20]}).config.ratio_range == (10, 20)


@pytest.mark.parametrize(
    "settings", [{"interval": 0}, {"ratio_range": [26, 14]}, {"ratio_range": [0, 5]}, {"img_scale": [640]}]
)
def test_invalid_settings_are_errors(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"SyncRandomSizeHook: {next(iter(settings))}"):
        SyncRandomSizeHook(settings)
