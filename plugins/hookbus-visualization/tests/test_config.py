import json

import pytest

from hookbus.errors import ConfigError
from hookbus_visualization import ImageConfig, SampleConfig, VisualizationConfig, VisualizationHook


def parse(batch, outputs):
    return {}


def get_problems(**settings):
    with pytest.raises(ConfigError) as caught:
        VisualizationHook(settings)
    return "\n".join(caught.value.problems)


class TestParse:
    def test_parse_accepts_an_import_string(self):
        assert VisualizationHook(parse="operator:add").config.parse(1, 2) == 3

    def test_parse_accepts_a_function(self):
        assert VisualizationHook(parse=parse).config.parse is parse

    def test_parse_is_serialized_as_an_import_string(self):
        config = VisualizationHook(parse=parse).config
        assert json.loads(config.model_dump_json())["parse"] == f"{__name__}:parse"

    def test_unknown_name_is_reported(self):
        assert "'operator:ad' cannot be imported: operator has no attribute 'ad'. Did you mean" in get_problems(
            parse="operator:ad"
        )

    def test_non_callable_is_reported(self):
        assert "parse" in get_problems(parse="math:pi")


class TestNumbers:
    def test_normalization_has_one_number_or_one_per_channel(self):
        config = ImageConfig.model_validate_json('{"mean": [0.5], "std": [0.1, 0.2, 0.3], "value_range": [0, 255]}')
        assert (config.mean, config.std, config.value_range) == ((0.5,), (0.1, 0.2, 0.3), (0, 255))

    def test_other_numbers_of_channels_are_rejected(self):
        assert "`mean` must contain 1, 3 or 4 numbers, got 2. Set one number, or one per channel." in get_problems(
            mean=[0.1, 0.2]
        )
        assert "`std` must contain 1, 3 or 4 numbers, got 5." in get_problems(std=[1, 1, 1, 1, 1])

    def test_invalid_ranges_are_rejected(self):
        assert "greater than 0" in get_problems(std=[0.0])
        assert "`value_range` must be [black, white] with black < white, got [1.0, 1.0]." in get_problems(
            value_range=[1, 1]
        )


def test_defaults_match_the_documentation():
    config = SampleConfig()
    assert (config.interval, config.draw_gt, config.draw_pred, config.show, config.save) == (
        500,
        True,
        True,
        False,
        True,
    )
    assert (config.out_dir, config.max_samples, config.score_thr, config.backend) == (None, 16, 0.3, "matplotlib")


def test_contents_are_selected_by_name():
    assert VisualizationConfig().content == ("predictions",)
    assert "'predictions', 'feature_maps', 'attention', 'cam' or 'gradients'" in get_problems(content=["prediction"])
    assert "content" in get_problems(content=[])
