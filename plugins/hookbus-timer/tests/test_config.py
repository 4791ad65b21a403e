import pytest

from hookbus.errors import ConfigError
from hookbus_timer import IterTimerConfig, IterTimerHook, TimeTrackingConfig, TimeTrackingHook


class TestIterTimerConfig:
    def test_default_config_logs_every_50_iterations_with_the_remaining_time(self):
        config = IterTimerConfig()

        assert (config.interval, config.log_eta) == (50, True)

    @pytest.mark.parametrize("interval", [0, -1, 1.5, "50", True])
    def test_nonpositive_or_noninteger_interval_raises(self, interval):
        with pytest.raises(ConfigError, match="IterTimerHook: interval"):
            IterTimerHook(interval=interval)

    def test_frequency_raises_and_names_interval(self):
        message = r"frequency: not supported, got 10: the timer has to receive every iteration\. Set `interval`"
        with pytest.raises(ConfigError, match=message):
            IterTimerHook(frequency=10)

    def test_frequency_of_one_is_accepted(self):
        assert IterTimerHook(frequency=1).config.frequency == 1


class TestTimeTrackingConfig:
    def test_default_config_writes_no_file(self):
        config = TimeTrackingConfig()

        assert (config.log_to_file, config.log_path) == (False, "time_tracking.log")

    def test_config_is_built_from_the_keys_of_a_run_file(self):
        hook = TimeTrackingHook(
            {"name": "training_timer", "frequency": 1, "log_to_file": True, "log_path": "custom_time_tracking.log"}
        )

        assert (hook.name, hook.config.log_path) == ("training_timer", "custom_time_tracking.log")

    def test_empty_path_raises(self):
        with pytest.raises(ConfigError, match="log_path"):
            TimeTrackingHook(log_path="")
