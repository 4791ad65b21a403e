"""The settings of the hooks, and what is refused."""

import pytest

from hookbus.errors import ConfigError
from hookbus_checkpoint import CheckpointHook, PreemptionHook


def test_defaults_are_those_of_the_hooks_document() -> None:
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
def test_save_best_is_a_switch_a_metric_a_list_or_auto(save_best: object, metrics: list[str]) -> None:
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
        ({"filename_tmpl": "epoch_{}.pt"}, "ends in .pth"),
        ({"filename_tmpl": ".epoch_{}.pth"}, "begins neither with a dot"),
        ({"filename_tmpl": "best_{}.pth"}, "nor with best_"),
        ({"filename_tmpl": "epoch_{:.0e}.pth"}, "one file would overwrite another"),
        ({"filename_tmpl": "epoch_{:s}.pth"}, "one {} for the number"),
        ({"filename_tmpl": "epoch_{.pth"}, "one {} for the number"),
        ({"filename_tmpl": "epoch_{:{}}.pth"}, "one {} for the number"),
        ({"filename_tmpl": "iter_{}.pth"}, "what files of iterations are called, and by_epoch is true"),
        ({"filename_tmpl": "iter_{:d}.pth"}, "what files of iterations are called, and by_epoch is true"),
        ({"filename_tmpl": "epoch\n{}.pth"}, "one {} for the number"),
        ({"filename_tmpl": "epoch\0{}.pth"}, "one {} for the number"),
        ({"save_best": ["val/acc", "val_acc"]}, "two of val/acc, val_acc would share one best file"),
        ({"every": "soon"}, "'soon' is no duration"),
        ({"every": "0min"}, "'0min' is no duration of at least a second"),
        ({"every": "1.5h"}, "'1.5h' is no duration"),
        ({"every": 30}, "every: should be a valid string"),
        ({"keep_every": 0}, "keep_every: should be greater than or equal to 1"),
        ({"async_save": "later"}, "async_save"),
        ({"when": "every(100)"}, "when: files of epochs and of iterations have each a schedule of their own"),
        ({"on_save_error": "ignore"}, "on_save_error: should be 'raise' or 'warn'"),
        ({"best_metric": "0_hmean-iou:recall"}, "does not tell whether greater or less is better: say rule"),
        ({"save_best": ["accuracy", "stop_rate"]}, "'stop_rate' does not tell"),
    ],
)
def test_what_cannot_work_is_refused_when_the_hook_is_built(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CheckpointHook(settings)

    assert message in str(caught.value)


def test_a_metric_without_direction_is_fine_with_a_rule() -> None:
    assert CheckpointHook(best_metric="0_hmean-iou:recall", rule="greater").config.metrics == ["0_hmean-iou:recall"]


@pytest.mark.parametrize(("every", "seconds"), [(None, None), ("90", 90), ("90s", 90), ("30min", 1800), ("2 h", 7200)])
def test_a_duration_is_in_seconds_minutes_or_hours(every: str | None, seconds: int | None) -> None:
    assert CheckpointHook(every=every).config.seconds == seconds


def test_names_of_files_by_the_clock_are_those_of_iterations() -> None:
    by_epoch = CheckpointHook(filename_tmpl="e{:03d}.pth").config
    by_iteration = CheckpointHook(filename_tmpl="i{}.pth", by_epoch=False).config

    assert by_epoch.file_name("epoch", 7) == "e007.pth"
    assert by_epoch.file_name("iteration", 7) == "iter_7.pth"
    assert by_iteration.file_name("iteration", 7) == "i7.pth"
    assert CheckpointHook(filename_tmpl="iter_{}.pth", by_epoch=False).config.file_name("iteration", 7) == "iter_7.pth"


def test_only_multiples_in_the_unit_of_the_interval_are_kept_for_ever() -> None:
    config = CheckpointHook(keep_every=5).config

    assert [n for n in range(12) if config.pins("epoch", n)] == [0, 5, 10]
    assert not config.pins("iteration", 5)
    assert not CheckpointHook().config.pins("epoch", 0)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGNOTHING"])
def test_only_signals_that_can_be_handled_are_accepted(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        PreemptionHook(signals=[name])
