"""Tests of the names of secrets."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus._utils.secrets import hide_secrets, is_ambiguous, is_secret, joins_to_secret

SECRET_KEYS = """
    password passwords passwd passphrase passcode pass pwd PASSWORD db_password DB_PASSWORD userPassword PGPASSWORD
    MYSQL_PWD db_pass smtp_pass userpass redis_password db_password_file proxy-password password1 secret secrets
    clientSecret client_secret SECRET_KEY secret_key jwt_secret aws_secret_access_key token tokens hf_token hf_tokens
    HF_TOKEN accessToken access_token refresh_token auth_token bot_token id_token csrf_token accesstoken authtoken
    hftoken token_2 X-Auth-Token PRIVATE-TOKEN X-Amz-Security-Token session_token api_key api_keys apiKey APIKey APIkey
    apikey X-Api-Key OPENAI_API_KEY wandb-api-key wandb_key WANDB_KEY comet_key stripe_key access_key access_key_id
    accessKeyId AWSAccessKeyId account_key private_key privkey ssh_key encryption_key signing_key license_key
    Authorization authorization Proxy-Authorization bearer credential credentials aws_credentials auth http_auth
    auth_header basicAuth oauth cookie cookies Set-Cookie session_id sessionid session_key webhook webhook_url
    creds git_creds training_api_token text_access_token first_auth_token
    slack_webhook sas sas_token sig signature X-Amz-Signature jwt hooks.note.password model.hub_token hooks.text.token
"""

HARMLESS_KEYS = """
    max_tokens num_tokens n_tokens token_count min_new_tokens max_new_tokens tokens_per_second total_tokens
    warmup_tokens prompt_tokens tokenizer tokenizer_path tokenize token_embedding token_dropout token_type
    token_type_ids
    token_pattern token_mixer token_level pad_token pad_token_id mask_token unk_token eos_token eos_token_id bos_token
    sep_token cls_token class_token register_tokens special_tokens additional_special_tokens stop_token image_token
    decoder_start_token_id suppress_tokens next_token page_token token_url token_file key keys sort_key key_padding
    key_padding_mask cache_key primary_key public_key image_key label_key query_key foreign_key group_key s3_key keyword
    key_value monkey hotkey donkey api api_url apis author authors authority author_email auth_url auth_type access
    access_pattern private private_pool bypass pass_through passes compass passenger forward_pass backward_pass
    num_pass single_pass high_pass_filter credit credits signal sign signed design assign sigma sigmoid sigma_data
    blank_token placeholder_token initializer_token speech_token newline_token token_acc token_pos token_shape
    token_column fx_pass graph_pass pass_at_k pass_ratio pass_kwargs
    model_signature cookie_cutter cookiecutter pin_memory secretary session username user host lr bearing
"""


@pytest.mark.parametrize("key", SECRET_KEYS.split())
def test_key_of_a_secret_is_recognized(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize("key", [*HARMLESS_KEYS.split(), "", "_", "7"])
def test_harmless_key_is_not_a_secret(key: str) -> None:
    assert not is_secret(key)


@pytest.mark.parametrize("key", ["größe", "ключ", "k" * 10**6, "a_" * 10**6, "A" * 10**6])
def test_key_of_other_scripts_or_any_length_is_not_a_secret(key: str) -> None:
    assert not is_secret(key)


def test_words_of_a_mapping_and_its_key_name_a_secret_together() -> None:
    assert joins_to_secret("wandb", "key")
    assert joins_to_secret("my_api", "keys")
    assert joins_to_secret("", "api_key")
    assert not joins_to_secret("sort", "key")
    assert not joins_to_secret("", "key")


def test_single_words_of_prose_are_ambiguous() -> None:
    assert is_ambiguous("token")
    assert is_ambiguous("Secret")
    assert not is_ambiguous("api_key")
    assert not is_ambiguous("password")


JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
BEGIN, END = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        # credentials of URLs
        ("postgres://me:S@host:5432/db", "postgres://me:***@host:5432/db"),
        ("https://me:p@S@host/x", "https://me:***@host/x"),
        ("https://me:p/S@host/x", "https://me:***@host/x"),
        ("https:/me:S@host/x", "https:/me:***@host/x"),  # as `Path` shortens it
        ("s3:/me:S@host: file does not exist", "s3:/me:***@host: file does not exist"),
        ("https:/S@host/x", "https:/***@host/x"),
        ("https://me:p#S'\"@host/x", "https://me:***@host/x"),
        ("redis://:S@host:6379/0", "redis://:***@host:6379/0"),
        ("https://S@github.com/x", "https://***@github.com/x"),
        ("git+https://S@github.com/x", "git+https://***@github.com/x"),
        ("https://S:x-oauth-basic@github.com", "https://***@github.com"),
        ("https://S:@api.example.com", "https://***@api.example.com"),
        ("mongodb+srv://me:S@a,b/db and http://b:S@c", "mongodb+srv://me:***@a,b/db and http://b:***@c"),
        # query parameters and connection strings
        ("https://h/x?api_key=S&page=2&token=S#top", "https://h/x?api_key=***&page=2&token=***"),
        ("https://h/x?se=1&sig=S%2B&sp=r", "https://h/x?se=1&sig=***&sp=r"),
        ("https://h/x?X-Amz-Signature=S&X-Amz-Expires=9", "https://h/x?X-Amz-Signature=***&X-Amz-Expires=9"),
        ("https://h/x?key=S1234567890abcdef", "https://h/x?key=***"),
        ("postgres://u@h/db?password=S&x=1", "postgres://u@h/db?password=***&x=1"),
        ("Server=x;Password=S S;Encrypt=yes", "Server=x;Password=***;Encrypt=yes"),
        ("Server=x; Pwd=S=S;", "Server=x; Pwd=***;"),
        ("Server=x;Password=S S", "Server=x;Password=***"),
        ("user=me,password=S,db=x", "user=me,password=***,db=x"),
        # headers, variables, options, JSON, YAML
        ("Authorization: Bearer S", "Authorization: ***"),
        ("Proxy-Authorization: Basic S S\nHost: x", "Proxy-Authorization: ***\nHost: x"),
        ("curl -H 'X-Api-Key: S' http://x", "curl -H 'X-Api-Key: ***' http://x"),
        ("Cookie: id=S; other=S", "Cookie: ***"),
        ("rejected: Bearer S1", "rejected: Bearer ***"),
        ("Basic bWU6cGFzc3dvcmQ=", "Basic ***"),
        ("HF_TOKEN=S python train.py", "HF_TOKEN=*** python train.py"),
        ("train.py --api-key=S --lr 0.1 --token S", "train.py --api-key=*** --lr 0.1 --token ***"),
        ('--password "S S" -v', '--password "***" -v'),
        ("hooks.note={type: x, password: S}", "hooks.note={type: x, password: ***}"),
        ("hooks.text.token=S", "hooks.text.token=***"),
        ("Client(api_key='S', retries=3)", "Client(api_key='***', retries=3)"),
        ("call(lr=1, token=S)", "call(lr=1, token=***)"),
        ('{"a", "password": "S\\"S", "lr": 1}', '{"a", "password": "***", "lr": 1}'),
        ('{\\"token\\": \\"S\\", \\"lr\\": 1}', '{\\"token\\": \\"***\\", \\"lr\\": 1}'),
        ("{'hf_token': b'S', 'lr': 1}", "{'hf_token': b'***', 'lr': 1}"),
        ("['--token', 'S', '--lr', '1']", "['--token', '***', '--lr', '1']"),
        ("user: me\npassword: S\nlr: 1", "user: me\npassword: ***\nlr: 1"),
        # webhooks and well-known tokens
        ("post to https://hooks.slack.com/services/T1/B1/S now", "post to https://hooks.slack.com/services/*** now"),
        ("https://hooks.example/S", "https://hooks.example/***"),
        ("https://discord.com/api/webhooks/1/S", "https://discord.com/api/webhooks/***"),
        ("https://x.webhook.office.com/webhookb2/S/S", "https://x.webhook.office.com/webhookb2/***"),
        ("https://api.telegram.org/bot1:S/send", "https://api.telegram.org/bot***"),
        ("bad key hf_S5abcdefghijklmnopqrstuvwx!", "bad key ***!"),
        ("sk-proj-abcd1234ABCD1234efgh5678", "***"),
        ("ghp_0123456789abcdefghijABCDEFGHIJ456789", "***"),
        ("github_pat_11ABCDEFG0abcdefghijkl_mnop", "***"),
        ("glpat-abcdefghij0123456789", "***"),
        ("xoxb-123456789012-abcdefghijkl", "***"),
        ("AKIAIOSFODNN7EXAMPLE", "***"),
        ("AIzaSyA1234567890abcdefghijklmnopqrstuvw", "***"),
        (f"token {JWT}.", "token ***."),
        (f"{BEGIN}\nS\nS\n{END}\nx", f"{BEGIN}***{END}\nx"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nS\nS", "-----BEGIN OPENSSH PRIVATE KEY-----***"),
    ],
)  # fmt: skip
def test_only_the_secret_part_of_a_string_is_hidden(text: str, hidden: str) -> None:
    assert hide_secrets(text) == hidden
    assert hide_secrets(hidden) == hidden


@pytest.mark.parametrize(
    "text",
    [
        *("", "***", "abc", "0.1", "12:30:45", "2026-01-01T12:30:45+0100", "a:b@c", "me@example.com", "user@host"),
        *("0123456789abcdef0123456789abcdef01234567"),
        *("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        *("git@github.com:x/y.git", "ssh://git@github.com/x/y", "git+https://github.com/x/y@v1.0#egg=y", "//host/x"),
        *("http://host:8080/x", "http://host:8080/x@y", "http://[::1]:8080/x@y", "https://host/@scope/pkg"),
        *("http://host/x?page=2&sort_key=id&key=a", "s3://bucket/key@1", "gs://bucket/key", "sqlite:///a@b.db"),
        *("abfss://box@account.dfs.core.windows.net/x", "docker://image@sha256:0123", "hdfs://node:9000/a@b"),
        *("/data/x@2x.png", "C:\\data\\x@2", "~/.cache/a=b", "runs/lr=0.1,wd=0", "meta-llama/Llama-2-7b", "hf_model"),
        *("package.module:Class", "every(50) & between(1, 1000)", "sk-learn-pipeline-v2-large", "sketch", "cuda:0"),
        *("the bearer of news", "Bearer token", "Basic training", "basic block", "tokens = tokenize(text)"),
        *("hooks.note: api_key: unknown key.", "token: should be a string, got 5.", "['token', 'label']", "<pad>"),
        *("max_tokens=5", "--max-tokens 5", "key=3", "sort_key: id", "if x != token", "token=None", "${env:TOKEN}"),
        *("password=${env:PASSWORD}", "eyJ is a prefix", "AKIA", "-----BEGIN CERTIFICATE-----\nx\n", "größe 😀"),
    ],
)  # fmt: skip
def test_ordinary_string_is_unchanged(text: str) -> None:
    assert hide_secrets(text) == text


words = st.text(string.ascii_lowercase, min_size=1, max_size=10).filter(lambda word: not word.startswith("hook"))
paths = st.lists(words, min_size=1, max_size=4).map("/".join)
secrets = st.text(string.ascii_letters + string.digits, min_size=8, max_size=40).map("S3cret".__add__)
names = st.sampled_from(["password", "api_key", "hf_token", "client_secret", "auth-token"])


@given(secrets, names, words, paths)
def test_generated_secrets_are_hidden_in_every_form(secret: str, name: str, word: str, path: str) -> None:
    for text in (
        f"ftp://{word}:{secret}@{word}.org/{path}",
        f"https://{secret}@{word}.org:8080/{path}",
        f"https://{word}.org/{path}?{word}=1&{name}={secret}&n=2",
        f"Server={word};{name}={secret};Port=1",
        f"X-{name.replace('_', '-')}: {secret}",
        f"{path} --{name} {secret} --n {word}",
        f"failed: {{'{word}': 1, '{name}': '{secret}'}}",
        f"https://hooks.{word}.org/{path}/{secret}",
    ):
        assert secret not in hide_secrets(text), text
        assert hide_secrets(hide_secrets(text)) == hide_secrets(text)


fragments = st.sampled_from(
    [
        *("token", "password", "api_key", "Authorization", "Bearer", "Basic", "hf_aaaaaaaaaaaaaaaaaaaa", "hooks."),
        *("webhook/", "https", "none", "x", "1", "***", "://", "--", *"=:@/'\"\\ {},;&?\n-[]()."),
    ]
)


@given(st.lists(fragments, max_size=14).map("".join))
def test_hiding_secrets_twice_changes_nothing(text: str) -> None:
    assert hide_secrets(hide_secrets(text)) == hide_secrets(text)


@given(words, paths, st.integers(1, 65535), st.sampled_from(["", "@v1", "@2x.png", "?page=1", "#top"]))
def test_generated_locations_are_unchanged(word: str, path: str, port: int, end: str) -> None:
    for text in (
        f"http://{word}:{port}/{path}{end}",
        f"s3://{word}/{path}{end}",
        f"ssh://git@{word}/{path}",
        f"git@{word}.org:{path}",
        f"{word}@{word}.org",
        f"/{path}{end}",
        f"{word}.{word}:{word}",
        f"{word}:{word}@{word}",
    ):
        assert hide_secrets(text) == text


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    ["a", "=", ":", "://", "a://b:", "@", "x://a:b", "token=", "token=a;", "'", '"', "\\'", "'token':", " ", "--token ",
     "-", "-----BEGIN PRIVATE KEY-----", "hf_", "sk-", "eyJ", "eyJaaaaaaaa.", "a.", "Bearer ", "webhook/", "//hooks.",
     ",a=", "?key=", "a-", "\n", "{token: ", "Basic aaaa"],
)  # fmt: skip
def test_long_strings_are_processed_in_linear_time(part: str) -> None:
    # A quadratic pattern would take minutes for a megabyte.
    text = part * (1_000_000 // len(part))
    assert hide_secrets(f"{text} https://me:S3cret@host").count("S3cret") == 0 or "'" in part or '"' in part
