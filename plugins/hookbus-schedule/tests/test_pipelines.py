from __future__ import annotations

import math
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hookbus.errors import ConfigError
from hookbus_schedule.milestones import Milestone
from hookbus_schedule.pipelines import SkipTypes, SwitchPipeline, build_pipeline


class TestPipelineFrom:
    def test_pipeline_is_built_from_callable_import_string_and_mapping(self) -> None:
        assert build_pipeline(abs) is abs
        assert build_pipeline("math:sqrt") is math.sqrt
        assert build_pipeline({"type": "hookbus_schedule.pipelines:Compose", "steps": [abs]})(-2) == 2
        assert build_pipeline(None) is None

    def test_pipeline_of_a_list_applies_its_steps_in_order(self) -> None:
        assert build_pipeline([abs, "math:sqrt", math.floor])(-17) == 4

    def test_import_string_is_resolved_in_the_current_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A console script has no entry for the current directory in sys.path.
        (tmp_path / "pipelines_of_this_test.py").write_text("def plus_one(x):\n    return x + 1\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
        assert build_pipeline("pipelines_of_this_test:plus_one")(1) == 2

    @pytest.mark.parametrize("setting", ["math:missing", 5, [5], "no.such.module:x", {"type": "fractions:Fraction"}])
    def test_setting_that_is_not_callable_is_an_error(self, setting: object) -> None:
        with pytest.raises(ValueError, match="must be a pipeline|cannot be imported"):
            build_pipeline(setting)

    def test_similar_name_is_suggested(self) -> None:
        with pytest.raises(
            ValueError, match=r"'math:sqr' cannot be imported: math has no attribute 'sqr'\. Did you mean 'sqrt'"
        ):
            build_pipeline("math:sqr")


class FakeDataset:
    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.pipeline = "first"

    def update_skip_type_keys(self, keys: list[str]) -> None:
        self.calls.append(keys)


class TestSwitches:
    def test_switch_is_applied_once_at_its_milestone(self) -> None:
        data, switch = FakeDataset(), SkipTypes([(Milestone(epoch=2), ["MixUp"])])
        for epoch, iteration in ((0, 0), (1, 9), (2, 10), (2, 11), (3, 12)):
            switch(data, epoch, iteration)

        assert data.calls == [["MixUp"]]

    def test_switch_is_picklable_for_spawned_workers(self) -> None:
        data, switch = FakeDataset(), pickle.loads(pickle.dumps(SwitchPipeline([(Milestone(iteration=3), math.sqrt)])))
        switch(data, 0, 2)
        assert data.pipeline == "first"
        switch(data, 0, 3)
        assert data.pipeline is math.sqrt


class TestSwitchedDatasets:
    def test_all_datasets_that_are_read_are_switched(self) -> None:
        switch, datasets = SwitchPipeline([(Milestone(epoch=1), math.sqrt)]), [FakeDataset() for _ in range(4)]
        for epoch, dataset in enumerate(datasets):
            switch(dataset, epoch, epoch)

        assert [dataset.pipeline for dataset in datasets] == ["first", math.sqrt, math.sqrt, math.sqrt]

    def test_datasets_are_restored_before_the_milestone_of_a_new_run(self) -> None:
        data = FakeDataset()
        for _ in range(2):
            pipelines, types = (
                SwitchPipeline([(Milestone(epoch=1), math.sqrt)]),
                SkipTypes([(Milestone(epoch=1), ["MixUp"])]),
            )
            for epoch in range(2):
                for switch in (pipelines, types):
                    switch(data, epoch, epoch)
                assert data.pipeline == ("first" if epoch == 0 else math.sqrt)

        assert data.calls == [["MixUp"], [], ["MixUp"]]

    def test_pipeline_that_the_user_set_in_the_meantime_is_kept(self) -> None:
        data = FakeDataset()
        SwitchPipeline([(Milestone(epoch=0), math.sqrt)])(data, 0, 0)
        data.pipeline = "user"
        switch = SwitchPipeline([(Milestone(epoch=1), math.sqrt)])
        switch(data, 0, 0)
        assert data.pipeline == "user"
        switch(data, 1, 1)
        assert data.pipeline is math.sqrt


class StandardTransform:
    """The `transforms` of a torchvision dataset, with a reference to its `transform`."""

    transform = None


class TestTorchvisionDatasets:
    def test_transform_inside_transforms_is_switched(self) -> None:
        data = SimpleNamespace(transform=abs, transforms=StandardTransform())
        pairs = SwitchPipeline([(Milestone(epoch=0), math.sqrt)]).find_attributes(data)

        assert pairs == [(data, "transform"), (data.transforms, "transform")]

    def test_transforms_without_transform_are_switched(self) -> None:
        for data in (SimpleNamespace(transform=None, transforms=abs), SimpleNamespace(transforms=abs)):
            assert SwitchPipeline([(Milestone(epoch=0), math.sqrt)]).find_attributes(data) == [(data, "transforms")]


def test_property_without_a_setter_is_an_error() -> None:
    class ReadOnlyDataset:
        @property
        def pipeline(self) -> Any:
            return abs

    with pytest.raises(
        ConfigError, match="of ReadOnlyDataset cannot be switched: 'pipeline' is a property without a setter"
    ):
        SwitchPipeline([(Milestone(epoch=0), math.sqrt)]).find_attributes(ReadOnlyDataset())
