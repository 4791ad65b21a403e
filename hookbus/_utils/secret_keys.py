"""Names of secrets: which keys of a configuration, command-line options and query parameters contain a secret."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

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
    return any(_contains_secret_word(_split(name)) or joins_to_secret("", name) for name in names)


def joins_to_secret(parent: str, key: str) -> bool:
    """Return whether two adjacent words name a secret, such as those of `api_key` or of `wandb: {key: ...}`.

    Args:
        parent: Key of the mapping that contains the key; "" if there is none.
        key: The key.
    """
    words = [*_split(parent)[-1:], *_split(key)]
    return any(first in _PAIRS.get(second, ()) for first, second in pairwise(words))


def is_ambiguous(key: str) -> bool:
    """Return whether a key consists of one word that occurs in prose as well, such as `token` in `token: missing`."""
    return _split(key) in ([word] for word in (*_CONTEXTS, *_LAST_WORDS, *_SIGNATURES, "secret", "secrets"))


def _split(key: str) -> list[str]:
    """Return the words of a key in lower case; words such as `accesstoken` are split."""
    words = [word.lower() for word in _WORD.findall(key[:MAX_LENGTH])]
    return [part for word in words for part in _split_joined(word)]


def _split_joined(word: str) -> Sequence[str]:
    match = _JOINED.fullmatch(word)
    return (word,) if match is None else match.groups()


def _contains_secret_word(words: Sequence[str]) -> bool:
    if any(word in _SECRET_WORDS or any(stem in word for stem in _STEMS) for word in words):
        return True
    return any(_is_secret_at(words, index) for index in range(len(words)))


def _is_secret_at(words: Sequence[str], index: int) -> bool:
    """Return whether a word with several meanings names a secret at its position in a key."""
    word, following = words[index], words[index + 1 :]
    if word in _CONTEXTS:
        context = frozenset[str]() if words[index - 1 : index] and words[index - 1] in _CREDENTIALS else _CONTEXTS[word]
        return _DESCRIPTIONS.isdisjoint(following) and context.isdisjoint(words)
    if word in _LAST_WORDS:
        return not following or following[0] in _AUTH_VALUES
    return word in _SIGNATURES and _SIGNED.issuperset(words[:index]) and not following
