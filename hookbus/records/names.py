"""Names as a back end takes them."""

from __future__ import annotations

import hashlib
import re

__all__ = ["encodable", "safe_name"]


def encodable(text: str) -> str:
    """A text that any encoding can hold: lone surrogates, as from a file name in no encoding, become their codes."""
    return text.encode("utf-8", "backslashreplace").decode()


def safe_name(name: str, forbidden: re.Pattern[str], longest: int) -> str:
    """A name without what is forbidden in it, and not too long.

    What is forbidden becomes `_`, and so does no name at all. A name that was changed gets a dash and 8 digits of its
    hash (SHA-256), so that two names never become one: `acc,top1` is `acc_top1-` and 8 digits.

    Args:
        name: any text.
        forbidden: what a back end does not take.
        longest: so many characters at most.
    """
    safe = forbidden.sub("_", name)
    if safe == name and 0 < len(name) <= longest:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{safe[: longest - len(digest) - 1] or '_'}-{digest}"
