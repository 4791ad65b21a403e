"""Every backend of this repository meets the same requirements, with its real library and real files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hookbus import WriterHook
from hookbus.testing import WriterTestCase
from hookbus.testing.writers import REQUIREMENTS, THREAD_REQUIREMENTS
from hookbus_mlflow import MLflowHook
from tests.conformance.backends import TEST_CASES

Requirement = Callable[[WriterTestCase, Path], None]


FULL_DISK = "writing recovers from a full disk"
IN_A_SEPARATE_PROCESS = [
    "a killed run resumes at its checkpoint",
    "a killed run resumes if everything was written before the kill",
    "a killed run restarts if there was no checkpoint",
    FULL_DISK,
]
SLOW = [REQUIREMENTS[description] for description in IN_A_SEPARATE_PROCESS]


def get_requirements(test_case: WriterTestCase) -> dict[str, Requirement]:
    """Return the requirements of a backend by description. A full disk only concerns backends with their own files."""
    threaded = THREAD_REQUIREMENTS if issubclass(test_case.cls, WriterHook) else {}
    named = {**REQUIREMENTS, **threaded}
    return {
        description: requirement
        for description, requirement in named.items()
        if test_case.writes_own_files or description != FULL_DISK
    }


def iter_cases() -> Iterator[Any]:
    for test_case in TEST_CASES:
        for description, requirement in get_requirements(test_case).items():
            slow = requirement in SLOW or test_case.cls is MLflowHook  # creating its database takes seconds
            marks = [pytest.mark.slow, pytest.mark.timeout(600)] if slow else []
            yield pytest.param(test_case, requirement, id=f"{test_case.cls.__name__}: {description}", marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(("test_case", "requirement"), list(iter_cases()))
def test_backend_meets_the_requirement(test_case: WriterTestCase, requirement: Requirement, tmp_path: Path) -> None:
    requirement(test_case, tmp_path)
