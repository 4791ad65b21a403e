"""Secrets inside strings: credentials of URLs, assignments, command-line options, headers, and well-known tokens.

Every pattern is linear in the length of the string: repetitions are bounded, possessive, or end at the next separator.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from functools import partial
from typing import Final

from hookbus._utils.secret_keys import is_ambiguous, is_secret

REDACTED: Final = "***"
"""Replacement for a secret."""

_Match = re.Match[str]

# Users such as `user:` before a password, and tokens without a user, which only HTTP uses: https://token@host.
_PLACEHOLDER_PASSWORDS = frozenset({"", "x-oauth-basic", "x-token-auth"})
_URL_USER = re.compile(
    r"(?<![\w+.-])((?:[a-zA-Z][\w+.-]{0,30})?)://([^\s/?#@\"'<>\[\]:]*+)(?:(:)(?!\d{1,5}[\"'])([^\s/?#]{0,4096}))?@"
)
# A password that contains a slash. `host:8080/path@2` is a port and a path.
_URL_PASSWORD = re.compile(r"(\w://[^\s/?#@\"'<>\[\]:]*+:)(?!\d{1,5}(?:[/?#\s\"']|$))[^\s/@][^\s@]{0,255}@")
# The path of a URL that is a secret as a whole.
_WEBHOOK = re.compile(
    r"(//(?:hooks\.[\w.-]{1,200}/(?:services/|workflows/|triggers/)?|api\.telegram\.org/bot"
    r"|[\w.:-]{1,200}/(?:[\w.-]{1,50}/){0,4}webhook(?:s|b2)?/))[^\s\"'<>]+"
)
# Query parameters whose names are harmless elsewhere.
_QUERY_KEY = re.compile(r"([?&](?:key|code)=)[\w-]{16,}(?![\w.-])")

# Names before a value, each with a pattern of the values.
_QUOTED = r"[bru]?(?:\"(?:\\.|[^\"\\])*+\"?|'(?:\\.|[^'\\])*+'?|\\\"[^\"]*+\"?|\\'[^']*+'?)"
_NAMED_VALUES = [
    # Headers: the value extends to the end of the line.
    (r"(?i)(?<![\w-])(?P<name>authorization|cookie|[a-z]\w{0,32}-[\w-]{1,64}+):[ \t]*", r"[^\r\n\"']+"),
    # Connection strings, whose values may contain spaces: `Server=x;Password=a b;`.
    (r"^(?P<name>[A-Za-z][\w ]{0,40})=", r"[^;=\n\"']++(?=;)"),
    (r"(?:(?<=;)|(?<=; ))(?P<name>[A-Za-z][\w ]{0,40})=", r"[^;=\n\"']++(?=;|\Z)"),
    # Quoted keys of JSON, and pairs in lists.
    (r"(?P<name>\\?[\"'][\w .-]{1,128}+\\?[\"'])[ ]?[:,=][ ]?", rf"{_QUOTED}|[^\s,:;\"'}}\])]+"),
    # Query parameters, variables and options.
    (
        r"(?<![\w.-])(?P<name>[\w.-]{1,128}+\]?)[ ]?=(?!=)[ ]?",
        rf"{_QUOTED}|(?:(?!,\s?[\w.-]{{1,64}}=)[^\s&;\"'<>])+",
    ),
    (r"(?<!\S)(?P<name>--[\w.-]{1,128}+)[ \t]+", rf"{_QUOTED}|[^\s\"'-]\S*"),
    # YAML: one word up to the end of the line or of the mapping; not a message such as `token: unknown key.`
    (
        r"(?m)(?:^[ \t]{0,40}|(?<=[{,])[ ]?)(?P<name>[\w.-]{1,128}+):[ \t]+",
        rf"(?m){_QUOTED}|[^\s,{{}}\"']++(?=[ \t]*(?:$|[,}}]))",
    ),
]
_OPENING_QUOTE = re.compile(r"(?:[bru](?=\\?[\"']))?\\?[\"']|")

_BEARER = re.compile(r"\b(Bearer|BEARER|(?<!\S)bearer)([ \t]+)([\w.~+/=-]{2,})")
_BEARER_PROSE = re.compile(r"(?i)(?:auth\w*|tokens?|scheme|error|realm|headers?|of|and|or|is|in|format)\b")
_BASIC = re.compile(r"\b([Bb]asic[ \t]+)([\w+/-]{4,4096}={0,2})")

_PRIVATE_KEY = re.compile(
    r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,6}-----).*?(-----END [A-Z0-9 ]{0,40}KEY[A-Z ]{0,6}-----|\Z)",
    re.DOTALL,
)
_TOKENS = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    + "|".join(
        [
            r"hf_[A-Za-z0-9]{16,}",
            r"api_org_[A-Za-z0-9]{16,}",
            r"gh[oprsu]_[A-Za-z0-9]{16,}",
            r"github_pat_\w{16,}",
            r"glpat-[\w-]{16,}",
            r"xox[abeoprs]-[A-Za-z0-9-]{8,}",
            r"xapp-[A-Za-z0-9-]{16,}",
            r"A(?:KI|SI)A[A-Z0-9]{12,}",
            r"AIza[\w-]{30,}",
            r"ya29\.[\w-]{16,}",
            r"eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?",
            r"wandb_v1_\w{16,}",
            r"npm_[A-Za-z0-9]{30,}",
            r"pypi-[\w-]{40,}",
            r"SG\.[\w-]{16,}\.[\w-]{16,}",
            r"[prs]k_(?:live|test)_[A-Za-z0-9]{10,}",
            r"whsec_[A-Za-z0-9+/=]{16,}",
            r"r8_[A-Za-z0-9]{30,}",
            r"gsk_[A-Za-z0-9]{30,}",
            r"hvs\.[\w-]{20,}",
            r"dapi[0-9a-f]{32}",
            r"nvapi-[\w-]{20,}",
            r"dop_v1_[0-9a-f]{32,}",
        ]
    )
    + ")(?![A-Za-z0-9_])"
)
# `sk-` is the prefix of names as well, such as sk-learn-pipeline-v2; a token has a long part without a separator.
_SK_TOKEN = re.compile(r"(?<![\w-])sk-[\w-]{16,}")
_SK_PART = re.compile(r"[A-Za-z0-9]{16}")


def hide_secrets(text: str) -> str:
    """Return a text in which the secrets are replaced by `***`.

    The text around a secret is unchanged: `postgres://me:***@host`, `https://host/x?api_key=***&page=2`,
    `Authorization: ***`, `--token ***`. Applying the function again changes nothing.

    Args:
        text: Text of any length.
    """
    for apply in _RULES:
        text = apply(text)
    return text


def _hide_user(match: _Match) -> str:
    scheme, user, colon, password = match.groups()
    if colon and password not in _PLACEHOLDER_PASSWORDS:
        return f"{scheme}://{user}:{REDACTED}@"
    is_token = bool(user) and bool(colon or scheme.lower().endswith(("http", "https", "ws", "wss")))
    return f"{scheme}://{REDACTED}@" if is_token else match[0]


def _hide_named(names: re.Pattern[str], values: re.Pattern[str], text: str) -> str:
    """Hide the values that follow the name of a secret."""
    parts, position = [], 0
    for match in names.finditer(text):
        is_visible = match.start() >= position and _is_hidden(match["name"], match[0])
        value = values.match(text, match.end()) if is_visible else None
        if value is not None:
            parts += [text[position : match.end()], _hide_quoted(value[0])]
            position = value.end()
    return "".join([*parts, text[position:]])


def _is_hidden(name: str, text: str) -> bool:
    """Return whether the value of a name is a secret; `text` is the name with the sign behind it."""
    # A single word also occurs in source code, `tokens = tokenize(text)`, and in lists, ["token", "label"].
    is_prose = " =" in text or ("," in text and "--" not in name)
    return is_secret(name) and not (is_prose and is_ambiguous(name))


def _hide_quoted(value: str) -> str:
    """Return the replacement of a value, with its quotes, or with the closing brackets of the text around it."""
    match = _OPENING_QUOTE.match(value)
    assert match is not None  # the empty alternative
    quote = match[0].lstrip("bru")
    rest = value[match.end() :]
    content = rest.removesuffix(quote) if quote else rest.rstrip(")]}")
    is_harmless = not content or content.lower() in ("none", "null", "true", "false") or is_reference(rest)
    return value if is_harmless else f"{match[0]}{REDACTED}{rest[len(content) :]}"


def _hide_bearer(match: _Match) -> str:
    return match[0] if _BEARER_PROSE.match(match[3]) else f"{match[1]}{match[2]}{REDACTED}"


def _hide_basic(match: _Match) -> str:
    """Hide Base64-encoded credentials, `user:password`; not the second word of `basic training`."""
    encoded = match[2].rstrip("=")
    try:
        decoded = base64.b64decode(encoded + "=" * (-len(encoded) % 4), b"-_" if "-" in encoded else None).decode()
    except ValueError:
        return match[0]
    return f"{match[1]}{REDACTED}" if ":" in decoded and decoded.isprintable() else match[0]


def _hide_sk_token(match: _Match) -> str:
    return REDACTED if _SK_PART.search(match[0]) else match[0]


_REFERENCE = re.compile(r"\$\{env:\w+\}")


def is_reference(value: str) -> bool:
    """Return whether a value is a reference to an environment variable, `${env:NAME}`, and not a secret itself."""
    return _REFERENCE.fullmatch(value) is not None


_RULES: list[Callable[[str], str]] = [
    partial(_PRIVATE_KEY.sub, rf"\1{REDACTED}\2"),
    partial(_URL_USER.sub, _hide_user),
    partial(_URL_PASSWORD.sub, rf"\1{REDACTED}@"),
    partial(_WEBHOOK.sub, rf"\1{REDACTED}"),
    partial(_QUERY_KEY.sub, rf"\1{REDACTED}"),
    *(partial(_hide_named, re.compile(names), re.compile(values)) for names, values in _NAMED_VALUES),
    partial(_BEARER.sub, _hide_bearer),
    partial(_BASIC.sub, _hide_basic),
    partial(_TOKENS.sub, REDACTED),
    partial(_SK_TOKEN.sub, _hide_sk_token),
]
"""Functions in the order of application; each hides one form of secrets in a text."""
