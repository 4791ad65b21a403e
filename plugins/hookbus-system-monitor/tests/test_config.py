import pytest

from hookbus.errors import ConfigError
from hookbus_system_monitor import MemoryProfilerHook, SystemMonitorHook


def settings_of(config):
    return {
        name: value for name, value in config.model_dump().items() if name not in type(config).__bases__[0].model_fields
    }


def test_the_defaults_of_the_system_monitor():
    config = SystemMonitorHook().config

    assert config.frequency == 10
    assert settings_of(config) == {
        "interval": 2.0,
        "track_cpu": True,
        "track_memory": True,
        "track_gpu": True,
        "track_gpu_memory": True,
        "track_disk": True,
        "track_network": True,
        "show_plots": False,
    }


def test_the_defaults_of_the_memory_profiler():
    assert settings_of(MemoryProfilerHook().config) == {
        "interval": 50,
        "log_gpu": True,
        "log_cpu": True,
        "warn_threshold": None,
    }


def test_whole_seconds_are_seconds():
    assert SystemMonitorHook({"interval": 2}).config.interval == 2


@pytest.mark.parametrize(
    ("hook", "settings"),
    [
        (SystemMonitorHook, {"interval": 0}),
        (SystemMonitorHook, {"frequency": 0}),
        (SystemMonitorHook, {"track_cpu": "yes"}),
        (MemoryProfilerHook, {"interval": 0}),
        (MemoryProfilerHook, {"warn_threshold": 0}),
    ],
)
def test_what_does_not_hold_is_refused(hook, settings):
    (name,) = settings
    with pytest.raises(ConfigError, match=name):
        hook(settings)
