"""Marks of tests that need a newer torch than the lowest supported one."""

from __future__ import annotations

import pytest

from hookbus._utils.torch_versions import FEATURES, is_torch


def requires_torch(feature: str) -> pytest.MarkDecorator:
    """Return the mark that skips a test if torch is too old for a feature.

    Args:
        feature: Key of `FEATURES`.
    """
    version, _ = FEATURES[feature]
    return pytest.mark.skipif(not is_torch(version), reason=f"{feature} requires torch {version} or newer")
