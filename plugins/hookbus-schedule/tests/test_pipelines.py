from __future__ import annotations

import math
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hookbus.errors import ConfigError
from hookbus_schedule.border import Border
from hookbus_schedule.pipelines import SkipTypes, SwitchPipeline, pipeline_from


class TestPipelineFrom:
    def test_takes_callables_and_paths_and_what_is_to_be_built(self) -> None:
        assert pipeline_from(abs) is abs
        assert pipeline_from("math:sqrt") is math.sqrt
        assert pipeline_from({"type": "hookbus_schedule.pipelines:Compose", "steps": [abs]})(-2) == 2
        assert pipeline_from(None) is None

    def test_takes_lists_which_are_done_one_after_the_other(self) -> None:
        assert pipeline_from([abs, "math:sqrt", math.floor])(-17) == 4

    def test_finds_what_is_beside_the_run_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A console script does not look there by itself."""
        (tmp_path / "pipelines_of_this_test.py").write_text("def plus_one(x):\n    return x + 1\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
        assert pipeline_from("pipelines_of_this_test:plus_one")(1) == 2

    @pytest.mark.parametrize("given", ["math:surely_not", 5, [5], "no.such.module:x", {"type": "fractions:Fraction"}])
    def test_refuses_what_cannot_be_called(self, given: object) -> None:
        with pytest.raises(ValueError, match="is no pipeline|cannot be imported"):
            pipeline_from(given)

    def test_a_name_that_is_nearly_right_is_told(self) -> None:
        with pytest.raises(ValueError, match=r"'math:sqr' cannot be imported: math has no 'sqr'\. Did you mean 'sqrt'"):
            pipeline_from("math:sqr")


class Data:
    def __init__(self) -> None:
        self.told: list[list[str]] = []
        self.pipeline = "first"

    def update_skip_type_keys(self, keys: list[str]) -> None:
        self.told.append(keys)


class TestSwitches:
    def test_are_made_once_and_not_before_the_border(self) -> None:
        data, switch = Data(), SkipTypes(Border(epoch=2), ["MixUp"])
        for epoch, iteration in ((0, 0), (1, 9), (2, 10), (2, 11), (3, 12)):
            switch(data, epoch, iteration)

        assert data.told == [["MixUp"]]

    def test_pickle_for_workers_that_are_spawned(self) -> None:
        data, switch = Data(), pickle.loads(pickle.dumps(SwitchPipeline([(Border(iteration=3), math.sqrt)])))
        switch(data, 0, 2)
        assert data.pipeline == "first"
        switch(data, 0, 3)
        assert data.pipeline is math.sqrt


class TestWhatIsSwitched:
    def test_is_every_data_set_that_is_read(self) -> None:
        switch, data = SwitchPipeline([(Border(epoch=1), math.sqrt)]), [Data() for _ in range(4)]
        for epoch, each in enumerate(data):
            switch(each, epoch, epoch)

        assert [each.pipeline for each in data] == ["first", math.sqrt, math.sqrt, math.sqrt]

    def test_goes_back_where_its_time_has_not_come_in_another_training(self) -> None:
        data = Data()
        for _ in range(2):
            pipelines, types = SwitchPipeline([(Border(epoch=1), math.sqrt)]), SkipTypes(Border(epoch=1), ["MixUp"])
            for epoch in range(2):
                for switch in (pipelines, types):
                    switch(data, epoch, epoch)
                assert data.pipeline == ("first" if epoch == 0 else math.sqrt)

        assert data.told == [["MixUp"], [], ["MixUp"]]

    def test_is_what_somebody_else_has_put_there_in_between(self) -> None:
        data = Data()
        SwitchPipeline([(Border(epoch=0), math.sqrt)])(data, 0, 0)
        data.pipeline = "theirs"
        switch = SwitchPipeline([(Border(epoch=1), math.sqrt)])
        switch(data, 0, 0)
        assert data.pipeline == "theirs"
        switch(data, 1, 1)
        assert data.pipeline is math.sqrt


class Both:
    """The `transforms` of torchvision: what is done to the input is inside."""

    transform = None


class TestDataSetsOfTorchvision:
    def test_may_read_the_transform_inside_their_transforms(self) -> None:
        data = SimpleNamespace(transform=abs, transforms=Both())
        places = SwitchPipeline([(Border(epoch=0), math.sqrt)]).check(data)

        assert places == [(data, "transform"), (data.transforms, "transform")]

    def test_may_have_transforms_alone(self) -> None:
        for data in (SimpleNamespace(transform=None, transforms=abs), SimpleNamespace(transforms=abs)):
            assert SwitchPipeline([(Border(epoch=0), math.sqrt)]).check(data) == [(data, "transforms")]


def test_a_pipeline_that_cannot_be_set_is_refused() -> None:
    class Fixed:
        @property
        def pipeline(self) -> Any:
            return abs

    with pytest.raises(ConfigError, match="of Fixed cannot be switched: 'pipeline' is a property without a setter"):
        SwitchPipeline([(Border(epoch=0), math.sqrt)]).check(Fixed())
