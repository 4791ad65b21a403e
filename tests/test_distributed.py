from __future__ import annotations

import pytest

from hookbus.distributed import is_main, rank, world_size


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1, True)),
        ({"RANK": "0", "WORLD_SIZE": "2"}, (0, 2, True)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, (3, 4, False)),
    ],
)
def test_which_process_this_is_stands_in_the_environment(
    variables: dict[str, str], expected: tuple[int, int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert (rank(), world_size(), is_main()) == expected
