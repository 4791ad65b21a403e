"""Tests of the names of secrets."""

from __future__ import annotations

import pytest

from hookbus._utils.secret_keys import is_ambiguous, is_secret, joins_to_secret

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
