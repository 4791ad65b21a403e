import pytest

from hookbus.errors import ConfigError
from hookbus_system_monitor import MemoryProfilerHook, SystemMonitorHook


def get_settings(config):
    return {
        name: value for name, value in config.model_dump().items() if name not in type(config).__bases__[0].model_fields
    }


def test_system_monitor_has_the_documented_defaults():
    config = SystemMonitorHook().config

    assert config.frequency == 10
    assert get_settings(config) == {
        "interval": 2.0,
        "track_cpu": True,
        "track_memory": True,
        "track_gpu": True,
        "track_gpu_memory": True,
        "track_disk": True,
        "track_network": True,
        "show_plots": False,
    }


def test_memory_profiler_has_the_documented_defaults():
    assert get_settings(MemoryProfilerHook().config) == {
        "interval": 50,
        "log_gpu": True,
        "log_cpu": True,
        "warn_threshold": None,
    }


def test_interval_may_be_an_integer():
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
def test_invalid_setting_raises(hook, settings):
    (name,) = settings
    with pytest.raises(ConfigError, match=name):
        hook(settings)
