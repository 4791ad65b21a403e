"""Tests of the cache of lookups."""

from __future__ import annotations

from hookbus._utils.lookup_cache import cache_within_lookups, cached_lookups


def test_results_are_cached_inside_the_context_only() -> None:
    calls: list[str] = []

    @cache_within_lookups
    def look_up(name: str) -> int:
        calls.append(name)
        return len(calls)

    with cached_lookups():
        assert (look_up("a"), look_up("b")) == (1, 2)
        with cached_lookups():
            assert look_up("a") == 1
        assert look_up("b") == 2
    assert look_up("a") == 3
