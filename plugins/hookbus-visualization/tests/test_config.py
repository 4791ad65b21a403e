import json

import pytest

from hookbus.errors import ConfigError
from hookbus_visualization import PictureConfig, SampleConfig, VisualizationConfig, VisualizationHook


def parse(batch, outputs):
    return {}


def problems(**settings):
    with pytest.raises(ConfigError) as caught:
        VisualizationHook(settings)
    return "\n".join(caught.value.problems)


class TestParse:
    def test_is_named_by_a_path(self):
        assert VisualizationHook(parse="operator:add").config.parse(1, 2) == 3

    def test_may_be_a_function(self):
        assert VisualizationHook(parse=parse).config.parse is parse

    def test_is_written_as_its_path(self):
        config = VisualizationHook(parse=parse).config
        assert json.loads(config.model_dump_json())["parse"] == f"{__name__}:parse"

    def test_that_is_not_there_is_told(self):
        assert "'operator:ad' cannot be imported: operator has no 'ad'. Did you mean" in problems(parse="operator:ad")

    def test_that_is_no_function_is_told(self):
        assert "parse" in problems(parse="math:pi")


class TestNumbers:
    def test_of_normalization_are_one_or_one_per_channel(self):
        config = PictureConfig.model_validate_json('{"mean": [0.5], "std": [0.1, 0.2, 0.3], "value_range": [0, 255]}')
        assert (config.mean, config.std, config.value_range) == ((0.5,), (0.1, 0.2, 0.3), (0, 255))

    def test_of_another_count_are_refused(self):
        assert "mean has 2 numbers. Give one, or one per channel: 3 or 4." in problems(mean=[0.1, 0.2])
        assert "std has 5 numbers" in problems(std=[1, 1, 1, 1, 1])

    def test_that_hide_everything_are_refused(self):
        assert "greater than 0" in problems(std=[0.0])
        assert "value_range is [black, white], so [1.0, 1.0] leaves nothing in between." in problems(value_range=[1, 1])


def test_the_defaults_are_those_of_the_documents():
    config = SampleConfig()
    assert (config.interval, config.draw_gt, config.draw_pred, config.show, config.save) == (
        500,
        True,
        True,
        False,
        True,
    )
    assert (config.out_dir, config.max_samples, config.score_thr, config.backend) == (None, 16, 0.3, "matplotlib")


def test_contents_are_chosen_by_name():
    assert VisualizationConfig().content == ("predictions",)
    assert "'predictions', 'feature_maps', 'attention', 'cam' or 'gradients'" in problems(content=["prediction"])
    assert "content" in problems(content=[])
