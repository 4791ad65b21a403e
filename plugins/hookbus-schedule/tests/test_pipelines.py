from __future__ import annotations

import math
import pickle

import pytest

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

    @pytest.mark.parametrize("given", ["math:surely_not", 5, [5], "no.such.module:x", {"type": "fractions:Fraction"}])
    def test_refuses_what_cannot_be_called(self, given: object) -> None:
        with pytest.raises(ValueError, match="is no pipeline|cannot be imported"):
            pipeline_from(given)


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
        data, switch = Data(), pickle.loads(pickle.dumps(SwitchPipeline(Border(iteration=3), math.sqrt)))
        switch(data, 0, 2)
        assert data.pipeline == "first"
        switch(data, 0, 3)
        assert data.pipeline is math.sqrt
