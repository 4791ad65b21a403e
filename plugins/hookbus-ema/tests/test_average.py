"""Moving average without a run: formula, tensors, application to the model, and state."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from hookbus_ema import ExponentialMovingAverage


def one_weight(value: float = 0.0) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def set_weight(model: nn.Linear, value: float) -> None:
    nn.init.constant_(model.weight, value)


def track(average: ExponentialMovingAverage, model: nn.Linear, values: Iterable[float]) -> list[float]:
    """Return the average after an update with each of the values as the weight."""
    averages = []
    for value in values:
        set_weight(model, value)
        average.update()
        averages.append(average.averaged()["weight"].item())
    return averages


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))


def train(model: nn.Module, steps: int, *averages: ExponentialMovingAverage | AveragedModel) -> None:
    """Take optimizer steps on noise, each followed by an update of the averages."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    noise = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 1, 4, 4, generator=noise)).square().mean().backward()
        optimizer.step()
        for average in averages:
            if isinstance(average, ExponentialMovingAverage):
                average.update()
            else:
                average.update_parameters(model)


def is_identical(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether names, dtypes and values are identical."""
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def clone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


class TestArithmetic:
    def test_warm_up_limits_the_momentum(self) -> None:
        model = one_weight().double()
        average = ExponentialMovingAverage(model, 0.9999, warm_up=10)

        assert [average.get_momentum(step) for step in (1, 2, 3, 4)] == [2 / 11, 1 / 4, 4 / 13, 5 / 14]
        averages = track(average, model, [1, 2, 3, 4])
        assert averages == pytest.approx([9 / 11, 75 / 44, 372 / 143, 3504 / 1001], rel=1e-14)
        assert average.momentum == 0.9999

    def test_default_warm_up_ends_at_the_step_of_the_formula(self) -> None:
        average = ExponentialMovingAverage(one_weight())

        assert average.get_momentum(1) == 2 / 101
        assert average.get_momentum(989_899) < 0.9999
        assert average.get_momentum(989_900) == 0.9999
        assert average.get_momentum(10**9) == 0.9999

    def test_momentum_is_constant_without_warm_up(self) -> None:
        model = one_weight()

        assert track(ExponentialMovingAverage(model, 0.5, warm_up=0), model, [1, 2, 3, 4]) == [
            0.5,
            1.25,
            2.125,
            3.0625,
        ]

    def test_average_starts_at_the_weights(self) -> None:
        model = one_weight(3.0)
        average = ExponentialMovingAverage(model)

        assert average.averaged()["weight"].item() == 3.0
        assert average.steps == 0

    def test_update_accepts_the_number_of_the_step(self) -> None:
        model = one_weight()
        average = ExponentialMovingAverage(model, 0.9999, warm_up=10)
        set_weight(model, 1)
        average.update(step=3)

        assert average.steps == 3
        assert average.averaged()["weight"].item() == pytest.approx(9 / 13)

    def test_momentum_may_be_zero_or_one(self) -> None:
        for momentum, expected in ((1.0, 0.0), (0.0, 7.0)):
            model = one_weight()
            assert track(ExponentialMovingAverage(model, momentum, warm_up=0), model, [7.0]) == [expected]

    @pytest.mark.parametrize("arguments", [{"momentum": 1.5}, {"momentum": -0.1}, {"warm_up": -1}])
    def test_arguments_out_of_range_are_rejected(self, arguments: dict[str, float]) -> None:
        with pytest.raises(ValueError, match=r"momentum must be in \[0, 1\] and warm_up at least 0"):
            ExponentialMovingAverage(one_weight(), **arguments)

    @hypothesis.settings(deadline=None, max_examples=50)
    @hypothesis.given(
        st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=40),
        st.floats(0.5, 0.9999),
        st.integers(0, 200),
    )
    def test_average_matches_the_formula_in_double_precision(
        self, values: list[float], momentum: float, warm_up: int
    ) -> None:
        """An update rounds three or four times, and later updates do not amplify its rounding error."""
        model, exact, largest = one_weight(), 0.0, max(map(abs, values))
        average = ExponentialMovingAverage(model, momentum, warm_up=warm_up)
        for i, value in enumerate(track(average, model, values), start=1):
            share = min(momentum, (1 + i) / (warm_up + i))
            exact = share * exact + (1 - share) * values[i - 1]
            assert value == pytest.approx(exact, abs=4 * i * torch.finfo(torch.float32).eps * largest + 1e-40)

    def test_average_is_bitwise_identical_to_averaged_model_of_torch(self) -> None:
        model = convolutional()
        reference = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        reference.update_parameters(model)
        average = ExponentialMovingAverage(model, 0.9, warm_up=0)
        train(model, 7, average, reference)

        assert is_identical(average.averaged(), dict(reference.module.state_dict()))
        assert not is_identical(average.averaged(), dict(model.state_dict()))

    def test_average_with_buffers_is_bitwise_identical_to_averaged_model_of_torch(self) -> None:
        model = convolutional()
        reference = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        reference.update_parameters(model)
        average = ExponentialMovingAverage(model, 0.9, warm_up=0, update_buffers=True)
        train(model, 7, average, reference)
        own, other = average.averaged(), dict(reference.module.state_dict())

        counter = "1.num_batches_tracked"
        assert own.pop(counter).item() == 7  # copied; torch averages the integer
        other.pop(counter)
        assert is_identical(own, other)


class TestTensors:
    def test_buffers_are_copied_and_counters_stay_integers(self) -> None:
        model = convolutional()
        average = ExponentialMovingAverage(model, 0.9)
        train(model, 3, average)
        own, raw = average.averaged(), model.state_dict()

        for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
            assert torch.equal(own[name], raw[name])
        assert own["1.num_batches_tracked"].item() == 3
        assert own["1.num_batches_tracked"].dtype == torch.int64
        assert not torch.equal(own["1.weight"], raw["1.weight"])

    def test_averaged_buffers_are_updated_like_weights(self) -> None:
        model = nn.BatchNorm1d(1)
        average = ExponentialMovingAverage(model, 0.5, warm_up=0, update_buffers=True)
        for value in (1.0, 2.0):
            model.running_mean.fill_(value)
            model.num_batches_tracked += 1
            average.update()

        assert average.averaged()["running_mean"].tolist() == [1.25]
        assert average.averaged()["num_batches_tracked"].item() == 2

    def test_shared_parameters_are_averaged_once_and_listed_under_each_name(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        model[1].weight = model[0].weight
        nn.init.zeros_(model[0].weight)
        average = ExponentialMovingAverage(model, 0.5, warm_up=0)
        nn.init.ones_(model[0].weight)
        average.update()

        own = average.averaged()
        assert list(own) == ["0.weight", "1.weight"]
        assert own["0.weight"] is own["1.weight"]
        assert len(average._averages) == 1
        assert own["0.weight"].unique().tolist() == [0.5]
        with average.applied():
            assert model[1].weight is model[0].weight
            assert model[1].weight.unique().tolist() == [0.5]

    def test_average_of_frozen_parameters_is_constant_until_they_are_unfrozen(self) -> None:
        model = convolutional()
        model[0].requires_grad_(False)
        before = clone(model[0].state_dict())
        average = ExponentialMovingAverage(model, 0.9, warm_up=0)
        train(model, 3, average)
        assert torch.equal(average.averaged()["0.weight"], before["weight"])

        model[0].requires_grad_(True)
        train(model, 1, average)
        expected = torch.lerp(before["weight"], model[0].weight.detach(), 1 - 0.9)
        assert torch.equal(average.averaged()["0.weight"], expected)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_low_precision_weights_are_averaged_in_32_bits(self, dtype: torch.dtype) -> None:
        """In bf16 an update from 1 by 0.0001 towards 2 would always be rounded to zero."""
        model = one_weight(1.0).to(dtype)
        average = ExponentialMovingAverage(model, 0.9999, warm_up=0)
        track(average, model, [2.0] * 1000)

        own = average.averaged()["weight"]
        assert own.dtype == torch.float32
        assert own.item() == pytest.approx(2 - 0.9999**1000, abs=1e-4)
        with average.applied():
            assert model.weight.dtype == dtype
            assert model.weight.item() == own.to(dtype).item()

    def test_tensors_may_have_different_dtypes(self) -> None:
        tensors = {
            "half": torch.zeros(2, dtype=torch.bfloat16),
            "single": torch.zeros(2),
            "double": torch.zeros(2, dtype=torch.float64),
            "complex": torch.zeros(2, dtype=torch.complex64),
            "integer": torch.zeros(2, dtype=torch.int32),
            "bool": torch.zeros(2, dtype=torch.bool),
        }
        average = ExponentialMovingAverage(tensors, 0.5, warm_up=0)
        for tensor in tensors.values():
            tensor.fill_(1)
        average.update()

        own = average.averaged()
        assert {name: value.tolist() for name, value in own.items()} == {
            "half": [0.5, 0.5],
            "single": [0.5, 0.5],
            "double": [0.5, 0.5],
            "complex": [0.5 + 0j, 0.5 + 0j],
            "integer": [1, 1],
            "bool": [True, True],
        }
        assert own["double"].dtype == torch.float64

    def test_averages_are_on_the_configured_device(self) -> None:
        average = ExponentialMovingAverage(nn.Linear(1, 1, device="meta"), device="meta")
        assert average.averaged()["weight"].device.type == "meta"
        assert ExponentialMovingAverage(one_weight(), device="cpu").averaged()["weight"].device.type == "cpu"

    def test_averages_have_the_names_of_the_state_dict(self) -> None:
        model = convolutional()
        model.register_buffer("scratch", torch.zeros(3), persistent=False)

        assert list(ExponentialMovingAverage(model).averaged()) == list(model.state_dict())

    def test_extra_state_is_not_averaged(self) -> None:
        class ExtraState(nn.Linear):
            def get_extra_state(self) -> Tensor:
                return torch.zeros(3)

            def set_extra_state(self, state: Tensor) -> None:
                pass

        assert list(ExponentialMovingAverage(ExtraState(1, 1)).averaged()) == ["weight", "bias"]

    def test_average_follows_weights_with_reassigned_data(self) -> None:
        model = one_weight()
        average = ExponentialMovingAverage(model, 0.5, warm_up=0)
        model.weight.data = torch.ones(1, 1)
        average.update()

        assert average.averaged()["weight"].item() == 0.5

    def test_average_identifies_its_model_by_its_tensors(self) -> None:
        model = convolutional()
        average = ExponentialMovingAverage(model)
        assert average.averages_model(model)
        assert not average.averages_model(copy.deepcopy(model))

        model[3] = nn.Linear(12, 2)
        assert not average.averages_model(model)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_update_allocates_no_memory(self, dtype: torch.dtype) -> None:
        model = convolutional().to(dtype)
        average = ExponentialMovingAverage(model, update_buffers=True)
        average.update()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            average.update()

        events = profile.events()
        assert any("foreach_lerp" in event.name for event in events)
        assert [event.name for event in events if event.self_cpu_memory_usage > 0] == []


class TestApplied:
    def test_model_contains_the_averages_inside_and_the_raw_weights_afterwards(self) -> None:
        model = convolutional()
        average = ExponentialMovingAverage(model, 0.9)
        train(model, 3, average)
        raw, own = clone(model.state_dict()), clone(average.averaged())
        assert average.raw() is None

        with average.applied():
            assert is_identical(dict(model.state_dict()), own)
            assert is_identical(average.raw() or {}, raw)
        assert is_identical(dict(model.state_dict()), raw)
        assert is_identical(average.averaged(), own)
        assert average.raw() is None

    def test_raw_weights_are_restored_after_an_exception(self) -> None:
        model = one_weight(3.0)
        average = ExponentialMovingAverage(model, 0.5, warm_up=0)
        track(average, model, [5.0])
        with pytest.raises(ZeroDivisionError), average.applied():
            raise ZeroDivisionError

        assert model.weight.item() == 5.0
        assert average.raw() is None

    def test_nested_context_is_a_no_op(self) -> None:
        model = one_weight(3.0)
        average = ExponentialMovingAverage(model, 0.5, warm_up=0)
        track(average, model, [5.0])
        with average.applied():
            with average.applied():
                assert model.weight.item() == 4.0
            assert model.weight.item() == 4.0
            assert (average.raw() or {})["weight"].item() == 5.0
        assert model.weight.item() == 5.0

    def test_changes_inside_are_lost(self) -> None:
        model = nn.BatchNorm1d(1)
        average = ExponentialMovingAverage(model)
        with average.applied():
            model(torch.full((4, 1), 100.0))

        assert model.running_mean.tolist() == [0.0]
        assert model.num_batches_tracked.item() == 0
        assert average.averaged()["running_mean"].tolist() == [0.0]

    def test_model_without_tensors_is_supported(self) -> None:
        average = ExponentialMovingAverage(nn.Identity())
        average.update()
        with average.applied():
            assert average.raw() == {}
        assert average.averaged() == {}

    def test_update_inside_is_rejected(self) -> None:
        average = ExponentialMovingAverage(one_weight())
        with average.applied(), pytest.raises(RuntimeError, match=r"Train and update outside of `applied\(\)`"):
            average.update()
        assert average.steps == 0

    def test_gradients_and_requires_grad_are_unchanged(self) -> None:
        model = one_weight(1.0)
        average = ExponentialMovingAverage(model)
        model(torch.ones(1, 1)).backward()
        with average.applied():
            pass

        assert model.weight.grad is not None
        assert model.weight.grad.item() == 1.0
        assert model.weight.requires_grad
        assert not average.averaged()["weight"].requires_grad


class TestState:
    def test_restored_average_continues_with_separate_raw_and_averaged_weights(self) -> None:
        model = one_weight()
        average = ExponentialMovingAverage(model, 0.5, warm_up=0)
        assert track(average, model, [1, 2, 3, 4])[-1] == 3.0625
        state = copy.deepcopy(average.state_dict())

        resumed = one_weight(4.0)
        other = ExponentialMovingAverage(resumed, 0.5, warm_up=0)
        other.load_state_dict(state)
        assert (resumed.weight.item(), other.averaged()["weight"].item(), other.steps) == (4.0, 3.0625, 4)
        assert track(other, resumed, [5]) == [4.03125]

    def test_restored_average_continues_the_warm_up(self) -> None:
        model = one_weight()
        uninterrupted = ExponentialMovingAverage(model, warm_up=10)
        expected = track(uninterrupted, model, [1, 2, 3, 4])
        first = ExponentialMovingAverage(model := one_weight(), warm_up=10)
        track(first, model, [1, 2])
        second = ExponentialMovingAverage(resumed_model := one_weight(2.0), warm_up=10)
        second.load_state_dict(copy.deepcopy(first.state_dict()))

        assert track(second, resumed_model, [3, 4]) == expected[2:]

    def test_load_state_dict_copies_the_tensors(self) -> None:
        model = one_weight()
        average = ExponentialMovingAverage(model, 0.5, warm_up=0)
        state = {"steps": 1, "averaged": {"weight": torch.ones(1, 1)}}
        average.load_state_dict(state)
        track(average, model, [9.0])

        assert state["averaged"]["weight"].item() == 1.0

    @pytest.mark.parametrize(
        ("change", "names"),
        [
            (lambda state: state.pop("bias"), "bias"),
            (lambda state: state.update(extra=torch.zeros(1)), "extra"),
            (lambda state: state.update(weight=torch.zeros(5, 5)), "weight"),
        ],
    )
    def test_mismatched_averages_are_rejected_without_a_change(self, change: object, names: str) -> None:
        average = ExponentialMovingAverage(nn.Linear(2, 2))
        before = clone(average.averaged())
        averages = {name: value + 1 for name, value in before.items()}
        change(averages)  # type: ignore[operator]

        with pytest.raises(ValueError, match=f"of another shape: {names}."):
            average.load_state_dict({"steps": 9, "averaged": averages})
        assert is_identical(average.averaged(), before)
        assert average.steps == 0
