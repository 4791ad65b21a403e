import pytest

from hookbus.errors import ConfigError
from hookbus_tensorboard import TensorBoardConfig, TensorBoardHook


def test_default_config_logs_only_scalars_and_text():
    assert TensorBoardConfig().interval == 50
    assert TensorBoardConfig().model_dump(include=set(TensorBoardConfig.__annotations__)) == {
        "log_dir": None,
        "log_graph": False,
        "log_images": False,
        "image_interval": 1000,
        "max_images": 8,
        "log_weights": False,
        "log_gradients": False,
        "histogram_interval": 1000,
    }


@pytest.mark.parametrize("key", ["interval", "image_interval", "max_images", "histogram_interval"])
def test_invalid_setting_is_named_in_the_error(key):
    with pytest.raises(ConfigError, match=key):
        TensorBoardHook(**{key: 0})
