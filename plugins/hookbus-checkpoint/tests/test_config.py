"""Validation of the configuration of the checkpoint and preemption hooks."""

import pytest

from hookbus.errors import ConfigError
from hookbus_checkpoint import CheckpointHook, PreemptionHook


def test_config_has_the_documented_defaults() -> None:
    config = CheckpointHook().config

    assert config.interval == 1
    assert config.by_epoch is True
    assert config.save_optimizer is True
    assert config.save_scheduler is True
    assert config.max_keep_ckpts == 5
    assert config.save_last is True
    assert config.metrics == ["accuracy"]
    assert config.out_dir is None
    assert config.template == "epoch_{}.pth"
    assert CheckpointHook(by_epoch=False).config.template == "iter_{}.pth"


@pytest.mark.parametrize(
    ("save_best", "metrics"),
    [(True, ["accuracy"]), (False, []), ("val_loss", ["val_loss"]), (["acc", "loss"], ["acc", "loss"]), ("auto", [])],
)
def test_save_best_is_a_bool_a_metric_a_list_or_auto(save_best: object, metrics: list[str]) -> None:
    assert CheckpointHook(save_best=save_best).config.metrics == metrics


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interval": 0}, "interval: should be greater than or equal to 1"),
        ({"interval": -1}, "interval: should be greater than or equal to 1"),
        ({"interval": True}, "interval: should be a valid integer"),
        ({"max_keep_ckpts": 0}, "max_keep_ckpts: should be greater than or equal to 1"),
        ({"save_bset": True}, "save_bset: unknown key. Did you mean 'save_best'"),
        ({"rule": "grater"}, "rule: should be 'greater' or 'less'"),
        ({"filename_tmpl": "model.pth"}, "one {} for the number"),
        ({"filename_tmpl": "a_{}_{}.pth"}, "one {} for the number"),
        ({"filename_tmpl": "sub/epoch_{}.pth"}, "must be a file name"),
        ({"filename_tmpl": "sub\\epoch_{}.pth"}, "none of the characters"),
        ({"filename_tmpl": "epoch:{}.pth"}, "none of the characters"),
        ({"filename_tmpl": "epoch_{:*>5}.pth"}, "none of the characters"),
        ({"filename_tmpl": "epoch_{}.pt"}, "ends with .pth"),
        ({"filename_tmpl": ".epoch_{}.pth"}, "starts neither with a dot"),
        ({"filename_tmpl": "best_{}.pth"}, "nor with best_"),
        ({"filename_tmpl": "epoch_{:.0e}.pth"}, "one {} for the number"),
        ({"filename_tmpl": "epoch_{:s}.pth"}, "one {} for the number"),
        ({"filename_tmpl": "epoch_{.pth"}, "one {} for the number"),
        ({"filename_tmpl": "epoch_{:{}}.pth"}, "one {} for the number"),
        ({"filename_tmpl": "iter_{}.pth"}, "reserved for checkpoints of iterations because by_epoch is true"),
        ({"filename_tmpl": "iter_{:d}.pth"}, "reserved for checkpoints of iterations because by_epoch is true"),
        ({"filename_tmpl": "epoch\n{}.pth"}, "one {} for the number"),
        ({"filename_tmpl": "epoch\0{}.pth"}, "one {} for the number"),
        ({"save_best": ["val/acc", "val_acc"]}, "metrics must have different file names, got val/acc, val_acc"),
        ({"save_best": ["Acc", "acc"]}, "metrics must have different file names, got Acc, acc"),
        ({"every": "soon"}, "every: must be a positive duration, got 'soon'"),
        ({"every": "0min"}, "every: must be a positive duration, got '0min'"),
        ({"every": 0}, "every: must be a positive duration, got 0"),
        ({"keep_every": 0}, "keep_every: should be greater than or equal to 1"),
        ({"async_save": "later"}, "async_save"),
        (
            {"when": "every(100)"},
            "when: not supported, got every(100): checkpoints of epochs and of iterations have separate schedules",
        ),
        ({"on_save_error": "ignore"}, "on_save_error: should be 'raise' or 'warn'"),
        ({"best_metric": "0_hmean-iou:recall"}, "Set `rule` to greater or less"),
        ({"save_best": ["accuracy", "stop_rate"]}, "rule: the name 'stop_rate'"),
    ],
)
def test_constructor_names_the_invalid_setting(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        CheckpointHook(settings)

    assert message in str(error.value)


def test_metric_without_direction_is_accepted_with_a_rule() -> None:
    assert CheckpointHook(best_metric="0_hmean-iou:recall", rule="greater").config.metrics == ["0_hmean-iou:recall"]


@pytest.mark.parametrize(("every", "seconds"), [(None, None), ("90", 90), (90, 90), ("30min", 1800), ("0.1s", 1)])
def test_duration_is_rounded_up_to_seconds(every: str | int | None, seconds: int | None) -> None:
    assert CheckpointHook(every=every).config.seconds == seconds


def test_checkpoints_by_duration_have_the_names_of_iterations() -> None:
    by_epoch = CheckpointHook(filename_tmpl="e{:03d}.pth").config
    by_iteration = CheckpointHook(filename_tmpl="i{}.pth", by_epoch=False).config

    assert by_epoch.file_name("epoch", 7, float) == "e007.pth"
    assert by_epoch.file_name("iteration", 7, float) == "iter_7.pth"
    assert by_iteration.file_name("iteration", 7, float) == "i7.pth"
    same = CheckpointHook(filename_tmpl="iter_{}.pth", by_epoch=False).config
    assert same.file_name("iteration", 7, float) == "iter_7.pth"


def test_keep_every_pins_multiples_in_the_unit_of_the_interval() -> None:
    config = CheckpointHook(keep_every=5).config

    assert [n for n in range(12) if config.is_pinned("epoch", n)] == [0, 5, 10]
    assert not config.is_pinned("iteration", 5)
    assert not CheckpointHook().config.is_pinned("epoch", 0)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGNOTHING"])
def test_config_rejects_signals_that_cannot_be_handled(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        PreemptionHook(signals=[name])
