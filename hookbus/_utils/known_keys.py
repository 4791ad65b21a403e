"""Packages, hooks and keys of run files of the hookbus project, and the hints of messages about unknown keys.

No plugin is imported for a message: `tests/generate.py` derives `known_keys.json` from the packages. A hint states
where a key belongs, its equivalent in another framework, or the closest accepted key. Callbacks of other frameworks
correspond to points.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable, Mapping
from importlib import resources

from hookbus.errors import MAX_NAME_LENGTH, MISSPELLING_CUTOFF, suggest_names

_KEYS = json.loads(resources.files(__package__).joinpath("known_keys.json").read_text("utf-8"))

TOP_LEVEL_KEYS: list[str] = _KEYS["top_level"]
"""Keys at the top level of a run file."""

SECTION_KEYS: dict[str, list[str]] = _KEYS["sections"]
"""Keys of each section of a run file."""

COMMON_KEYS: list[str] = _KEYS["common"]
"""Keys of every hook."""

PUBLISHED_HOOKS: dict[str, dict[str, str]] = _KEYS["packages"]
"""Class of each hook, by package and by name of the hook."""

PUBLISHED_FACTORIES: dict[str, dict[str, str]] = _KEYS["factories"]
"""Package of each model and dataset of run files, by kind (`model`, `dataset`) and by name."""

HOOK_SETTINGS: dict[str, list[str]] = _KEYS["hooks"]
"""Settings of each hook, without the common keys."""

_FRAMEWORK_NAMES = {
    "device": ("devices",),
    "hooks": ("callbacks", "custom_hooks", "writer", "writers"),
    "loss": ("criterion", "loss_function"),
    "resume": ("ckpt_path", "resume_from", "resume_from_checkpoint"),
    "scheduler": ("lr_scheduler",),
    "train_loader": ("train_dataloader", "train_dataloaders"),
    "training.accumulate": ("accumulate_grad_batches", "gradient_accumulation_steps"),
    "training.clip_grad_norm": ("gradient_clip_val", "max_grad_norm"),
    "training.distributed": ("strategy",),
    "training.epochs": ("max_epochs", "n_epochs", "num_epochs", "num_train_epochs"),
    "training.iterations": ("max_iters", "max_steps", "num_iterations"),
    "training.precision": ("mixed_precision",),
    "training.tokens": ("max_tokens",),
    "val_loader": ("val_dataloader", "val_dataloaders"),
    "work_dir": ("default_root_dir", "exp_dir", "output_dir"),
}
FRAMEWORK_KEYS = {name: key for key, names in _FRAMEWORK_NAMES.items() for name in names}
"""Keys of a run file, with the section, or arguments of the Trainer, by the name in another framework."""

_METRIC_NAMES = ("key_indicator", "metric", "metric_for_best_model", "metric_name", "monitor")
SETTING_NAMES = {
    "best_metric": _METRIC_NAMES,
    "filename_tmpl": ("filename", "filename_pattern"),
    "interval": (
        *("eval_steps", "every", "every_n_epochs", "every_n_steps", "every_n_train_steps", "log_every_n_steps"),
        *("logging_steps", "save_freq", "save_steps", "update_every"),
    ),
    "max_keep_ckpts": ("max_to_keep", "n_saved", "save_total_limit"),
    "min_delta": ("early_stopping_threshold",),
    "mode": ("greater_is_better", "rule"),
    "momentum": ("beta", "decay", "ema_decay"),
    "monitor": _METRIC_NAMES,
    "out_dir": ("directory", "dirname", "dirpath"),
    "patience": ("early_stopping_patience",),
    "rule": ("greater_is_better", "mode"),
}
"""Names in other frameworks of the settings of hooks."""

OPTIMIZER_ARGUMENTS = {"base_lr": "lr", "learning_rate": "lr", "lr": "lr", "weight_decay": "weight_decay"}
"""Arguments of optimizers by the names under which they are passed elsewhere."""

LIMITS = ("epochs", "iterations", "tokens")
"""Settings of `training` of which a run has one: a layer that sets one replaces the others."""

ARGUMENT_NAMES = {"loss": "loss_fn"}
"""Arguments whose name differs from that of the key of a run file."""


def find_equivalent(name: str, arguments: Collection[str]) -> str | None:
    """Return the argument that corresponds to an argument of another framework, or None."""
    key = FRAMEWORK_KEYS.get(name, name).rpartition(".")[2]
    return next((candidate for candidate in (key, ARGUMENT_NAMES.get(key)) if candidate in arguments), None)


TOP_LEVEL = "the top level"
"""Name of the model itself among its sections."""

MAX_LISTED_HOOKS = 3

HOOK_CLASSES = {name: cls for hooks in PUBLISHED_HOOKS.values() for name, cls in hooks.items()}


def explain_unknown_key(key: str, known: Collection[str], *, sections: Iterable[str] = ()) -> str:
    """Return the hint for an unknown key, with a leading space.

    Args:
        key: The unknown key.
        known: Keys that are accepted in its place.
        sections: Sections of the model of the data that accept the key; `TOP_LEVEL` for the model itself.

    Returns:
        Where the key belongs; else the closest names of `suggest_names`.
    """
    in_hook = set(COMMON_KEYS) <= set(known)
    if in_hook and (setting := next((name for name in known if key in SETTING_NAMES.get(name, ())), None)):
        return f" `{key}` is `{setting}` in hookbus."
    if home := _describe_home(key, list(sections), settings=known if in_hook else ()):
        # `scheduler` belongs at the top level, but in a hook with `schedulers` that setting is meant as often.
        near = _find_similar(key, known)
        return f" Did you mean {near[0]!r}? `{key}` {home}" if near else f" `{key}` {home}"
    hint = suggest_names(key, known)
    if not hint or hint.startswith(" Did you mean") or len(key) > MAX_NAME_LENGTH:
        return hint
    others = [other for other in _get_all_keys() if other != key]
    near = _find_similar(key, others)
    return f" Did you mean {near[0]!r}? `{near[0]}` {_describe_home(near[0], [])}" if near else hint


def suggest_type(settings: Collection[str]) -> str:
    """Return the hint to add the type of a hook whose settings contain none, with a leading space.

    Args:
        settings: Keys of the hook.
    """
    own = set(settings) - {*COMMON_KEYS, "type"}
    hooks = [hook for hook, accepted in HOOK_SETTINGS.items() if own and own <= set(accepted)]
    return f" Its keys are those of `{hooks[0]}`: add `type: {hooks[0]}`." if len(hooks) == 1 else " Add `type: ...`."


def explain_hook_settings(settings: Mapping[str, object]) -> str:
    """Return the hint for settings from which no hook can be built, with a leading space; "" if nothing is known.

    Args:
        settings: Keys of the hook; unknown ones are recognized for the hooks of the project.
    """
    if "type" not in settings:
        return suggest_type(settings)
    kind = settings["type"]
    hook = next((name for name, cls in HOOK_CLASSES.items() if kind in (name, cls)), None)
    known = [] if hook is None else [*HOOK_SETTINGS[hook], *COMMON_KEYS]
    unknown = [key for key in settings if known and key not in (*known, "type")]
    return "".join(f" {key}: unknown key.{explain_unknown_key(key, known)}" for key in unknown)


def _describe_home(key: str, sections: list[str], *, settings: Collection[str] = ()) -> str:
    """Return where a key belongs as the end of a sentence, or "".

    Args:
        key: The unknown key.
        sections: Sections that accept it, if they are known.
        settings: Settings of the hook that contains the key, if it is in a hook.
    """
    sections = sections or find_sections(key)
    if key in TOP_LEVEL_KEYS or TOP_LEVEL in sections:
        return "belongs at the top level."
    if setting := find_setting(key):
        return f"is `{setting}` in hookbus."
    if key in COMMON_KEYS and key != "name":
        return "is a setting of every hook: write it in the settings of a hook."
    if key in HOOK_CLASSES or key in HOOK_CLASSES.values():
        return "is a hook: write it in hooks."
    hooks = [name for name, accepted in HOOK_SETTINGS.items() if key in accepted]
    home = _describe_settings(sections, hooks)
    # Neither a misspelled setting nor a setting of many hooks is evidence that another hook was meant.
    if home and settings and (len(hooks) > MAX_LISTED_HOOKS or _find_similar(key, settings)):
        return ""
    return home


def _find_similar(key: str, names: Collection[str]) -> list[str]:
    """Return the name that a key probably misspells, in a list that is empty if there is none."""
    return difflib.get_close_matches(key, names, n=1, cutoff=MISSPELLING_CUTOFF)


def _describe_settings(sections: list[str], hooks: list[str]) -> str:
    """Return the sections and the hooks that accept a key."""
    homes = [f"belongs in {' or in '.join(f'`{name}`' for name in sections)}"] if sections else []
    if 0 < len(hooks) <= MAX_LISTED_HOOKS:
        names = " or ".join(f"`{name}`" for name in hooks)
        homes.append(f"is a setting of the hook {names}: write it in hooks")
    elif hooks:
        homes.append(f"is a setting of {len(hooks)} hooks, such as `{hooks[0]}`: write it in hooks")
    return f"{', or '.join(homes)}." if homes else ""


def find_sections(key: str) -> list[str]:
    """Return the sections of a run file that accept a key."""
    return [name for name, keys in SECTION_KEYS.items() if key in keys]


def find_setting(name: str) -> str | None:
    """Return the key of a run file, such as `training.epochs`, that corresponds to a name elsewhere, or None."""
    if name in OPTIMIZER_ARGUMENTS:
        return f"optimizer.{OPTIMIZER_ARGUMENTS[name]}"
    section, _, key = FRAMEWORK_KEYS.get(name, "").rpartition(".")
    return FRAMEWORK_KEYS[name] if key in (SECTION_KEYS[section] if section else TOP_LEVEL_KEYS) else None


def _get_all_keys() -> list[str]:
    keys: list[Mapping[str, Collection[str]]] = [SECTION_KEYS, HOOK_SETTINGS]
    return sorted({*TOP_LEVEL_KEYS, *HOOK_CLASSES, *(key for homes in keys for home in homes.values() for key in home)})


def _pair(start: str, end: str, **points: str) -> dict[str, str]:
    """Return the callbacks `on_<phase>_<start>` and `on_<phase>_<end>`, and the points before and after each phase."""
    edges = {start: "before", end: "after"}
    return {f"on_{name}_{edge}": f"{side}_{point}" for name, point in points.items() for edge, side in edges.items()}


FRAMEWORK_ALIASES: Mapping[str, Mapping[str, str]] = {
    "Lightning": {
        **_pair("start", "end", fit="run", train="train", train_epoch="epoch", train_batch="train_iter"),
        **_pair("start", "end", sanity_check="val", validation="val", validation_epoch="val_epoch"),
        **_pair("start", "end", validation_batch="val_iter", test_epoch="test_epoch", test_batch="test_iter"),
        **_pair("start", "end", test="test"),
        **_pair("start", "end", predict="predict", predict_epoch="predict_epoch", predict_batch="predict_iter"),
        "on_before_backward": "after_forward",
        "on_after_backward": "after_backward",
        "on_before_optimizer_step": "before_optimizer_step",
        "on_before_zero_grad": "after_optimizer_step",
        "on_save_checkpoint": "before_save_checkpoint",
        "on_load_checkpoint": "after_load_checkpoint",
    },
    "Hugging Face": {
        **_pair("begin", "end", train="train", epoch="epoch", step="train_iter"),
        "on_pre_optimizer_step": "before_optimizer_step",
        "on_optimizer_step": "after_optimizer_step",
        "on_evaluate": "after_val",
        "on_predict": "after_predict",
        "on_save": "after_save_checkpoint",
        "on_log": "log_scalars",
    },
    "Keras": {
        **_pair("begin", "end", train="train", epoch="epoch", train_batch="train_iter", batch="train_iter"),
        **_pair("begin", "end", predict="predict", predict_batch="predict_iter"),
    },
}
"""Callback names by framework, and the point that is emitted at the same moment; also listed in docs/coming-from.md."""


def find_framework_alias(name: str) -> tuple[str, str] | None:
    """Return the frameworks that define a callback name, and the corresponding point.

    Returns:
        ("Lightning and Keras", "after_train_iter"), or None if no framework defines the name.
    """
    matches = {framework: names[name] for framework, names in FRAMEWORK_ALIASES.items() if name in names}
    return (" and ".join(matches), next(iter(matches.values()))) if matches else None
