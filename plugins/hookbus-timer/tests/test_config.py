import pytest

from hookbus.errors import ConfigError
from hookbus_timer import IterTimerConfig, IterTimerHook, TimeTrackingConfig, TimeTrackingHook


class TestIterTimerConfig:
    def test_records_every_50_iterations_with_the_time_left(self):
        config = IterTimerConfig()

        assert (config.interval, config.log_eta) == (50, True)

    @pytest.mark.parametrize("interval", [0, -1, 1.5, "50", True])
    def test_refuses_an_interval_that_is_no_positive_count(self, interval):
        with pytest.raises(ConfigError, match="IterTimerHook: interval"):
            IterTimerHook(interval=interval)

    def test_refuses_a_frequency_and_says_what_to_use(self):
        with pytest.raises(ConfigError, match=r"frequency: the timer has to see every iteration\. Say interval"):
            IterTimerHook(frequency=10)

    def test_takes_a_frequency_of_one_which_leaves_nothing_out(self):
        assert IterTimerHook(frequency=1).config.frequency == 1


class TestTimeTrackingConfig:
    def test_writes_no_file_unless_told_to(self):
        config = TimeTrackingConfig()

        assert (config.log_to_file, config.log_path) == (False, "time_tracking.log")

    def test_is_built_from_the_keys_of_a_run_file(self):
        hook = TimeTrackingHook(
            {"name": "training_timer", "frequency": 1, "log_to_file": True, "log_path": "custom_time_tracking.log"}
        )

        assert (hook.name, hook.config.log_path) == ("training_timer", "custom_time_tracking.log")

    def test_refuses_an_empty_path(self):
        with pytest.raises(ConfigError, match="log_path"):
            TimeTrackingHook(log_path="")
