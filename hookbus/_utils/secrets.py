"""Recognition of secrets: keys of configurations that name one, and secrets inside strings.

Strings contain credentials of URLs, assignments, command-line options, headers, and well-known tokens. Every pattern is
linear in the length of the string: repetitions are bounded, possessive, or end at the next separator.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Final

# Key names are split into words: camelCase, snake_case and acronyms. Digits are ignored: `api_key_2`.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
MAX_LENGTH = 1000
"""Number of characters of a key that are examined."""

# Parts of words that have no other meaning: `PGPASSWORD`, `dbpassword`, `credentials`.
_STEMS = ("password", "passwd", "passphrase", "passcode", "credential")
# Words that name a secret at any position of a key.
_SECRET_WORDS = frozenset(
    {"authorization", "bearer", "creds", "jwt", "privkey", "pwd", "sas", "secret", "secrets", "webhook", "webhooks"}
)
# Words that name a secret at the end of a key only: `http_auth` and `auth_header`, not `auth_url`.
_LAST_WORDS = frozenset({"auth", "oauth"})
_AUTH_VALUES = frozenset({"header", "headers", "string", "value", "data"})
# Words that name a secret alone and after a word of the second set: `X-Amz-Signature`, not `model_signature`.
_SIGNATURES = frozenset({"sig", "signature"})
_SIGNED = frozenset({"x", "amz", "goog", "hmac", "request", "url", "webhook"})

# Services and purposes whose `key` is a secret: `wandb_key`, `access_key_id`; not `sort_key`, `public_key`, `s3_key`.
_KEY_OWNERS = frozenset(
    {
        *("access", "account", "aes", "anthropic", "api", "app", "application", "auth", "aws", "azure", "cipher"),
        *("clearml", "client", "cohere", "comet", "consumer", "datadog", "decryption", "deploy", "encryption"),
        *("fernet", "gcp", "gemini", "github", "gitlab", "google", "gpg", "groq", "hf", "hmac", "huggingface"),
        *("instrumentation", "kaggle", "labelbox", "langsmith", "license", "login", "mailgun", "master", "mistral"),
        *("mlflow", "neptune", "newrelic", "nvidia", "openai", "pgp", "pinecone", "private", "qdrant", "replicate"),
        *("roboflow", "rsa", "sendgrid", "sentry", "service", "session", "signing", "slack", "ssh", "ssl", "stripe"),
        *("subscription", "tls", "together", "twilio", "wandb", "weaviate"),
    }
)
_PAIRS = {"key": _KEY_OWNERS, "keys": _KEY_OWNERS, "id": frozenset({"session"})}
"""Words that name a secret after certain other words."""
# Owners that are written together with the word: `accesstoken`, `hftoken`, `wandbkey`, `clientsecret`, `userpass`.
_OWNERS = sorted(_KEY_OWNERS | {"bot", "csrf", "db", "hub", "id", "refresh", "smtp", "user", "xsrf"})
_JOINED = re.compile(rf"({'|'.join(_OWNERS)})(keys?|tokens?|secrets?|pass|id|auth)")

# Words after a word such as `token` that describe it instead of naming its value: `token_url`, `cookie_domain`.
_DESCRIPTIONS = frozenset(
    {
        *("class", "count", "counts", "cutter", "dim", "dir", "domain", "endpoint", "env", "expiry", "field", "file"),
        *("files", "format", "id", "ids", "index", "len", "length", "lifetime", "limit", "method", "mode", "name"),
        *("names", "path", "paths", "pattern", "policy", "regex", "separator", "size", "strategy", "timeout", "ttl"),
        *("column", "columns", "freq", "grid", "pos", "shape", "type", "types", "uri", "url"),
    }
)
# Words of language models and vision transformers: `max_tokens`, `pad_token`, `token_embedding`, `cls_token`.
_TOKEN_CONTEXT = frozenset(
    {
        *("added", "additional", "assistant", "attention", "audio", "bad", "batch", "begin", "bos", "bpe", "budget"),
        *("char", "chunk", "class", "classifier", "cls", "completion", "context", "decoder", "dist", "distillation"),
        *("draft", "drop", "dropout", "embed", "embedder", "embedding", "embeddings", "encoder", "encoding", "end"),
        *("eod", "eoi", "eos", "eot", "extra", "fim", "first", "forced", "generated", "generation", "hidden"),
        *("ignore", "image", "input", "label", "labeling", "labels", "lang", "language", "last", "latent", "learned"),
        *("level", "loss", "mask", "masked", "masking", "max", "maximum", "memory", "merge", "merging", "middle"),
        *("min", "minimum", "mixer", "mixing", "n", "new", "next", "norm", "num", "number", "output", "pad"),
        *("padding", "page", "patch", "per", "pool", "pooling", "position", "predicted", "prefix", "prompt"),
        *("pruning", "query", "reasoning", "reduction", "register", "repeat", "role", "sample", "sampling"),
        *("selection", "sep", "seq", "sequence", "shift", "shuffle", "sink", "skip", "special", "src", "start"),
        *("stop", "sub", "suffix", "suppress", "system", "target", "text", "tgt", "thinking", "tool", "total"),
        *("train", "training", "unk", "unknown", "val", "video", "vision", "visual", "vocab", "vocabulary", "warmup"),
        *("weight", "weights", "window", "wise", "word"),
        *("acc", "accuracy", "blank", "concept", "eol", "eou", "initializer", "instance", "modifier", "newline"),
        *("placeholder", "separator", "silence", "speaker", "speech", "think", "timestep", "turn"),
    }
)
_PASS_CONTEXT = frozenset(
    {
        *("all", "backward", "band", "bypass", "data", "eval", "filter", "first", "forward", "high", "last", "low"),
        *("multi", "n", "num", "number", "one", "per", "rate", "second", "single", "through", "train", "two", "val"),
        *("compiler", "fusion", "fx", "graph", "inductor", "k", "kwargs", "optimizer", "ratio", "state"),
    }
)
_CONTEXTS = {
    "token": _TOKEN_CONTEXT,
    "tokens": _TOKEN_CONTEXT,
    "pass": _PASS_CONTEXT,
    "cookie": frozenset({"consent", "cutter"}),
    "cookies": frozenset({"consent"}),
}
"""Words that name a secret, and the words that give them another meaning."""
_CREDENTIALS = frozenset({"access", "api", "auth", "hub", "oauth", "refresh"})
"""Words before `token` that name a secret in every context: `training_api_token`."""


@lru_cache(1024)
def is_secret(key: str) -> bool:
    """Return whether a key names a secret: `api_key`, `hf_token`, `clientSecret`, `DB_PASSWORD`; not `num_tokens`.

    Args:
        key: Name of a setting, such as "api_key".
    """
    # In lower case as well: `APIkey` has no boundary of words in camel case.
    names = [name for part in key.split(".") for name in (part, part.lower())]
    return any(
        joins_to_secret("", name) or any(_is_secret_at(words, index) for index in range(len(words)))
        for name, words in zip(names, map(_split, names), strict=True)
    )


def joins_to_secret(parent: str, key: str) -> bool:
    """Return whether two adjacent words name a secret, such as those of `api_key` or of `wandb: {key: ...}`."""
    words = [*_split(parent)[-1:], *_split(key)]
    return any(first in _PAIRS.get(second, ()) for first, second in pairwise(words))


def is_ambiguous(key: str) -> bool:
    """Return whether a key consists of one word that occurs in prose as well, such as `token` in `token: missing`."""
    return _split(key) in ([word] for word in (*_CONTEXTS, *_LAST_WORDS, *_SIGNATURES, "secret", "secrets"))


def _split(key: str) -> list[str]:
    """Return the words of a key in lower case; words such as `accesstoken` are split."""
    words = [word.lower() for word in _WORD.findall(key[:MAX_LENGTH])]
    joined = [_JOINED.fullmatch(word) for word in words]
    return [part for word, match in zip(words, joined, strict=True) for part in (match.groups() if match else (word,))]


def _is_secret_at(words: Sequence[str], index: int) -> bool:
    """Return whether a word names a secret at its position in a key."""
    word, following = words[index], words[index + 1 :]
    if word in _SECRET_WORDS or any(stem in word for stem in _STEMS):
        return True
    if word in _CONTEXTS:
        context = frozenset[str]() if words[index - 1 : index] and words[index - 1] in _CREDENTIALS else _CONTEXTS[word]
        return _DESCRIPTIONS.isdisjoint(following) and context.isdisjoint(words)
    if word in _LAST_WORDS:
        return not following or following[0] in _AUTH_VALUES
    return word in _SIGNATURES and _SIGNED.issuperset(words[:index]) and not following


REDACTED: Final = "***"
"""Replacement for a secret."""

_Match = re.Match[str]

# Users such as `user:` before a password, and tokens without a user, which only HTTP uses: https://token@host. `Path`
# removes a slash of a URL: https:/user:password@host.
_PLACEHOLDER_PASSWORDS = frozenset({"", "x-oauth-basic", "x-token-auth"})
_URL_USER = re.compile(
    r"(?<![\w+.-])((?:[a-zA-Z][\w+.-]{0,30})?)(://|(?<=\w\w):/(?=[^\s/]))"
    r"([^\s/?#@\"'<>\[\]:]*+)(?:(:)(?!\d{1,5}[\"'])([^\s/?#]{0,4096}))?@"
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
    """
    for apply in _RULES:
        text = apply(text)
    return text


def _hide_user(match: _Match) -> str:
    scheme, slashes, user, colon, password = match.groups()
    if colon and password not in _PLACEHOLDER_PASSWORDS:
        return f"{scheme}{slashes}{user}:{REDACTED}@"
    is_token = bool(user) and bool(colon or scheme.lower().endswith(("http", "https", "ws", "wss")))
    return f"{scheme}{slashes}{REDACTED}@" if is_token else match[0]


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
