"""Names as a back end takes them."""

from __future__ import annotations

import hashlib
import re

from hypothesis import given
from hypothesis import strategies as st

from hookbus.records.names import encodable, safe_name

FORBIDDEN = re.compile(r"[^a-z/]")


def test_a_name_that_is_fine_stays() -> None:
    assert safe_name("val/loss", FORBIDDEN, 8) == "val/loss"


def test_what_is_forbidden_becomes_a_line_and_the_name_gets_its_hash() -> None:
    digest = hashlib.sha256(b"acc,top").hexdigest()[:8]
    assert safe_name("acc,top", FORBIDDEN, 99) == f"acc_top-{digest}"


def test_a_long_name_is_cut_and_gets_its_hash() -> None:
    assert re.fullmatch("x{11}-[0-9a-f]{8}", safe_name("x" * 300, FORBIDDEN, 20))


def test_no_name_at_all_gets_its_hash() -> None:
    assert safe_name("", FORBIDDEN, 99) == f"_-{hashlib.sha256(b'').hexdigest()[:8]}"


def test_what_no_encoding_can_hold_becomes_its_code() -> None:
    assert encodable("größe \udce9😀") == "größe \\udce9😀"


@given(st.lists(st.text(), unique=True, max_size=20))
def test_names_stay_apart_and_short(names: list[str]) -> None:
    safe = {safe_name(name, FORBIDDEN, 30) for name in names}
    assert len(safe) == len(names)
    assert all(len(name) <= 30 for name in safe)
