"""Every common key of an installed hook affects one of its listeners, or is refused with the reason."""

from __future__ import annotations

import pytest

from hookbus import HookBus, discovery
from hookbus._events.listeners import applies_frequency
from hookbus._utils.plugin_entries import PluginEntry
from hookbus.errors import HookbusError
from hookbus.testing.common_keys import check_common_keys

from .test_plugins import PLUGINS, get_working_settings

REQUIRE_EVERY_EVENT = [
    "accumulation",
    "check_invalid_loss",
    "dist_sampler_seed",
    "early_stopping",
    "ema",
    "freeze",
    "iter_timer",
    "mean_teacher",
    "out_of_memory",
    "param_scheduler",
    "pipeline_switch",
    "preemption",
    "profiler",
    "set_epoch_info",
    "startup_check",
    "swa",
    "sync_buffers",
    "sync_metrics",
    "sync_norm",
    "sync_random_size",
    "time_limit",
    "yolox_lr",
    "yolox_mode_switch",
]
"""Hooks that would miss or delay what they do if they received a part of the iterations or epochs."""


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_common_key_affects_a_listener_or_is_refused(plugin: PluginEntry) -> None:
    check_common_keys(discovery.load_entry(plugin), get_working_settings(plugin))


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_condition_of_a_subclass_does_not_hide_events_in_other_units(plugin: PluginEntry) -> None:
    cls = discovery.load_entry(plugin)
    hook = cls(get_working_settings(plugin))
    bus = HookBus([hook])
    (member,) = bus.pm.members.values()
    listeners = [(item, bus.points[target]) for target, item in member.implementations.items() if target in bus.points]
    unmarked = [item.method for item, point in listeners if point.unit and item.options.get("frequency") is not False]
    affected = [item.method for item, point in listeners if applies_frequency(hook, item.options, point)]
    scheduled = [item.method for item, _ in listeners if item.options.get("when") is not None]
    assert sorted({*unmarked} - {*affected, *scheduled}) == []


@pytest.mark.parametrize("name", REQUIRE_EVERY_EVENT)
def test_hook_that_requires_every_event_refuses_frequency(name: str) -> None:
    plugin = discovery.find_entry(name)
    cls = discovery.load_entry(plugin)
    with pytest.raises(HookbusError, match=r"frequency.*, got 7: "):
        HookBus([cls({**get_working_settings(plugin), "frequency": 7})])
