"""Outputs of a model by name, and errors for a loss that cannot be trained on."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR

from hookbus._run.run import Run
from hookbus._training.steps import Steps, extract_loss, extract_scalar_loss, outputs_to_dict
from hookbus.errors import ConfigError, LoopError
from hookbus.hook import Hook
from hookbus.metrics.results import Metrics
from tests import toys


class Weight(nn.Module):
    """Multiplies the input by a weight, initially 1, and applies a function to the product."""

    def __init__(self, function: Callable[[Tensor], Any] = lambda output: output) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.linear.weight)
        self.function = function

    def forward(self, x: Tensor, bias: Any = 0.0) -> Any:
        return self.function(self.linear(x) + bias)

    @property
    def value(self) -> float:
        return self.linear.weight.item()


def mean(output: Tensor, target: Any = None) -> Tensor:
    """Return the mean of the output; the gradient of the weight is the mean of the inputs."""
    return output.mean()


def inputs(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).reshape(-1, 1)


def make_steps(model: nn.Module, **options: Any) -> Steps:
    defaults: dict[str, Any] = {
        "optimizer": None,
        "loss_fn": None,
        "step_fn": None,
        "accumulate": 1,
        "precision": "fp32",
        "clip_grad_norm": None,
        "device": torch.device("cpu"),
    }
    return Steps(model, **{**defaults, **options})


def test_fp16_on_an_apple_gpu_requires_a_newer_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"precision": "fp16", "device": torch.device("mps")}
    monkeypatch.setattr(torch, "__version__", "2.6.0")
    with pytest.raises(ConfigError, match=r"precision: fp16 on MPS requires torch 2\.9 or newer, got 2\.6\.0"):
        make_steps(Weight(), **options)

    monkeypatch.setattr(torch, "__version__", "2.9.0")
    assert make_steps(Weight(), **options).scaler is not None


class RecordingHook(Hook):
    """Records weight, step count and outputs after each iteration."""

    def __init__(self, model: Weight) -> None:
        super().__init__()
        self.recorded_model = model
        self.weights: list[float] = []
        self.steps: list[int] = []
        self.outputs: list[Any] = []

    def after_train_iter(self, run: Run, outputs: Any) -> None:
        self.weights.append(self.recorded_model.value)
        self.steps.append(run.steps_done)
        self.outputs.append(outputs)


def train(
    batches: Sequence[Any], *hooks: object, model: Weight | None = None, **options: Any
) -> tuple[RecordingHook, Run]:
    """Train a weight with SGD and a learning rate of 1, by default for one epoch."""
    model = model or Weight()
    recording = RecordingHook(model)
    limit = {} if "iterations" in options else {"epochs": 1}
    defaults = {"optimizer": torch.optim.SGD(model.parameters(), lr=1.0), "loss_fn": mean, "train_loader": batches}
    run = toys.trainer(recording, *hooks, model=model, **{**limit, **defaults, **options}).fit()
    return recording, run


def pairs(*values: float) -> list[Any]:
    """Return batches of one input each, with an unused target."""
    return [(inputs(value), torch.zeros(1)) for value in values]


class TestForward:
    """Forward of the model 1 * x + bias for x = 2 and 4, whose mean is 3."""

    def test_loss_function_is_applied_to_the_output(self) -> None:
        outputs = make_steps(Weight(), loss_fn=nn.functional.l1_loss).forward((inputs(2, 4), inputs(1, 1)))

        assert outputs["loss"] == 2.0  # the mean of 2 - 1 and 4 - 1
        assert outputs["output"].tolist() == [[2.0], [4.0]]

    def test_loss_function_replaces_the_loss_in_a_mapping(self) -> None:
        model = Weight(lambda output: {"logits": output.sum(), "loss": -1})
        steps = make_steps(model, loss_fn=lambda output, target: output["logits"] - target)
        outputs = steps.forward((inputs(2, 4), 5))

        assert outputs == {"logits": 6.0, "loss": 1.0}

    def test_last_element_of_a_batch_is_the_target(self) -> None:
        outputs = make_steps(Weight(), loss_fn=lambda output, target: output.sum() * target).forward(
            [inputs(2, 4), 1, 10]
        )

        assert outputs["loss"] == 80.0  # ((2 + 1) + (4 + 1)) * 10

    @pytest.mark.parametrize(
        ("batch", "loss"),
        [
            ({"x": inputs(2, 4), "bias": 1}, 4.0),
            ((inputs(2, 4), 1), 4.0),
            ([inputs(2, 4)], 3.0),
            (inputs(2, 4), 3.0),
        ],
        ids=["mapping", "tuple", "list", "tensor"],
    )
    def test_model_receives_the_full_batch_without_a_loss_function(self, batch: Any, loss: float) -> None:
        assert make_steps(Weight(mean)).forward(batch) == {"loss": loss}

    @pytest.mark.parametrize(
        ("step_fn", "expected"),
        [
            (lambda model, batch: model(batch["key"]).sum(), {"loss": 6.0}),
            (lambda model, batch: {"loss": model(batch["key"]).sum(), "extra": 7}, {"loss": 6.0, "extra": 7}),
        ],
    )
    def test_step_fn_replaces_model_call_and_loss(self, step_fn: Any, expected: Any) -> None:
        steps = make_steps(Weight(), step_fn=step_fn, loss_fn=lambda *_: pytest.fail("the loss function was called"))

        assert steps.forward({"key": inputs(2, 4)}) == expected

    def test_eval_step_returns_the_loss(self) -> None:
        trainer = toys.trainer(model=Weight(), loss_fn=mean)

        assert trainer.steps.eval_step(trainer.bus.current, (inputs(2, 4), None))["loss"] == 3.0


class TestLoss:
    @pytest.mark.parametrize(
        ("function", "loss_fn", "batch", "message"),
        [
            (
                lambda output: output,
                None,
                inputs(2, 4),
                "loss: missing from the outputs of the model, got {output: tensor of shape (2, 1)}. Pass `loss_fn` "
                "(for example F.cross_entropy), return a single number or a mapping with 'loss' from the model, or "
                "pass `step_fn`.",
            ),
            (
                lambda output: {"loss": output},
                None,
                inputs(2, 4),
                "loss: expected a single number, got shape (2, 1). Take its mean or sum.",
            ),
            (
                lambda output: output.mean().detach(),
                None,
                inputs(2, 4),
                "loss: does not depend on any parameter that requires a gradient. Remove detach() or no_grad() from "
                "the computation of the loss, and make sure that not every parameter is frozen.",
            ),
        ],
        ids=["no loss", "multiple elements", "detached"],
    )
    def test_invalid_loss_is_an_error_with_a_fix(self, function: Any, loss_fn: Any, batch: Any, message: str) -> None:
        with pytest.raises(LoopError) as raised:
            train([batch], model=Weight(function), loss_fn=loss_fn)

        assert str(raised.value) == message

    def test_loss_with_one_element_may_have_any_shape(self) -> None:
        recording, _ = train(pairs(2), loss_fn=lambda output, target: output)

        assert recording.weights == [-1.0]
        assert recording.outputs[0]["loss"].shape == ()

    def test_nan_loss_is_trained_on_and_reported(self) -> None:
        counts = []

        class NonfiniteHook(Hook):
            def after_train_epoch(self, metrics: Metrics) -> None:
                counts.append(metrics.nonfinite)

        losses = iter([1.0, float("nan"), 1.0])
        recording, run = train(
            pairs(0, 0, 0), NonfiniteHook(), loss_fn=lambda output, _: output.sum() * 0 + next(losses)
        )

        assert counts == [{"train/loss": 1}]
        assert (run.outcome, recording.steps) == ("finished", [1, 2, 3])


class TestAccumulation:
    def test_step_uses_the_mean_gradient_of_its_micro_batches(self) -> None:
        recording, _ = train(pairs(1, 3, 2, 8), accumulate=2)

        assert recording.weights == [1.0, -1.0, -1.0, -6.0]  # minus the mean of 1 and 3, minus that of 2 and 8
        assert recording.steps == [0, 1, 1, 2]

    def test_hooks_receive_the_unscaled_loss_of_the_micro_batch(self) -> None:
        recording, _ = train(pairs(1, 3), accumulate=2)

        assert [outputs["loss"].item() for outputs in recording.outputs] == [1.0, 3.0]

    def test_accumulation_group_may_span_two_epochs(self) -> None:
        iterations: list[tuple[int, int]] = []

        class StepHook(Hook):
            def after_optimizer_step(self, run: Run, step: int) -> None:
                iterations.append((step, run.iter + 1))

        recording, run = train(pairs(1, 2, 3, 4, 5), StepHook(), accumulate=2, epochs=2)

        assert iterations == [(1, 2), (2, 4), (3, 6), (4, 8), (5, 10)]
        assert recording.steps == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
        # 1 - mean(1, 2) - mean(3, 4) - mean(5, 1) - mean(2, 3) - mean(4, 5)
        assert recording.weights[-1] == 1 - 1.5 - 3.5 - 3 - 2.5 - 4.5
        assert not run.accumulating

    def test_incomplete_group_at_the_end_of_training_is_not_a_step(self) -> None:
        recording, run = train(pairs(1, 2, 3), accumulate=2)

        assert (run.iters_done, run.steps_done, run.accumulating) == (3, 1, True)
        assert recording.weights == [1.0, -0.5, -0.5]

    def test_accumulated_gradients_equal_those_of_the_full_batch(self) -> None:
        gradients = []

        class GradientHook(Hook):
            def before_optimizer_step(self, run: Run) -> None:
                assert run.model is not None
                grads = (parameter.grad for parameter in run.model.parameters())
                gradients.append([grad.clone() for grad in grads if grad is not None])

        x = torch.randint(-8, 8, (8, 4), generator=torch.Generator().manual_seed(0)).float()
        y = torch.randint(-8, 8, (8, 2), generator=torch.Generator().manual_seed(1)).float()
        for accumulate in (1, 4):
            model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
            for parameter in model.parameters():  # sums of small integers are exact
                nn.init.constant_(parameter, 1.0)
            toys.trainer(
                GradientHook(),
                model=model,
                loss_fn=nn.functional.mse_loss,
                train_loader=list(zip(x.chunk(accumulate), y.chunk(accumulate), strict=True)),
                accumulate=accumulate,
                epochs=1,
            ).fit()

        full, accumulated = gradients
        assert len(full) == 4
        assert all(map(torch.equal, full, accumulated))
        assert all(gradient.abs().sum() > 0 for gradient in full)

    def test_skipped_iteration_is_not_part_of_a_group(self) -> None:
        class SkippingHook(Hook):
            def before_train_iter(self, run: Run, batch_idx: int) -> None:
                if batch_idx == 1:
                    run.request_skip_iter("a bad batch")

        recording, run = train(pairs(1, 100, 3), SkippingHook(), accumulate=2)

        assert recording.weights == [1.0, 1.0, -1.0]
        assert recording.outputs[1] is None
        assert (run.iters_done, run.steps_done) == (3, 1)

    def test_iteration_skipped_after_forward_is_not_part_of_a_group(self) -> None:
        class SkippingHook(Hook):
            def after_forward(self, run: Run, batch_idx: int, loss: torch.Tensor) -> None:
                if batch_idx == 1:
                    run.request_skip_iter("a bad loss")

        recording, run = train(pairs(1, 100, 3), SkippingHook(), accumulate=2)

        assert recording.weights == [1.0, 1.0, -1.0]
        assert recording.outputs[1]["loss"].item() == 100.0
        assert not recording.outputs[1]["loss"].requires_grad
        assert (run.iters_done, run.steps_done) == (3, 1)

    def test_failed_step_leaves_no_gradients_for_the_next_group(self) -> None:
        class FailingOnceHook(Hook):
            failed = False

            def before_optimizer_step(self) -> None:
                if not self.failed:
                    self.failed = True
                    raise ZeroDivisionError

        model = Weight()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        trainer = toys.trainer(
            FailingOnceHook(), model=model, optimizer=optimizer, loss_fn=mean, train_loader=pairs(3), epochs=1
        )
        with pytest.raises(ZeroDivisionError):
            trainer.fit()
        trainer.fit()

        assert model.value == -2.0


class TestEvents:
    class EventHook(Hook):
        def __init__(self, model: Weight) -> None:
            super().__init__()
            self.recorded_model = model
            self.events: list[Any] = []

        def record(self, point: str) -> None:
            gradient = self.recorded_model.linear.weight.grad
            self.events.append((point, None if gradient is None else gradient.item(), self.recorded_model.value))

        def after_forward(self, batch: Any, outputs: Any, loss: Tensor) -> None:
            assert loss is outputs["loss"]
            assert loss.requires_grad
            self.record("after_forward")

        def after_backward(self, batch: Any, outputs: Any, loss: Tensor) -> None:
            self.record("after_backward")

        def before_optimizer_step(self) -> None:
            self.record("before_optimizer_step")

        def after_optimizer_step(self) -> None:
            self.record("after_optimizer_step")

        def after_train_iter(self) -> None:
            self.record("after_train_iter")

    def test_events_occur_at_the_documented_gradient_and_weight(self) -> None:
        model = Weight()
        events_hook = self.EventHook(model)
        train(pairs(1, 3, 2), events_hook, model=model, accumulate=2)

        assert events_hook.events == [
            ("after_forward", None, 1.0),
            ("after_backward", 0.5, 1.0),
            ("after_train_iter", 0.5, 1.0),
            ("after_forward", 0.5, 1.0),
            ("after_backward", 2.0, 1.0),
            ("before_optimizer_step", 2.0, 1.0),
            ("after_optimizer_step", 2.0, -1.0),
            ("after_train_iter", 2.0, -1.0),
            ("after_forward", None, -1.0),
            ("after_backward", 1.0, -1.0),
            ("after_train_iter", 1.0, -1.0),
        ]


class TestPrecision:
    @pytest.mark.parametrize(
        ("precision", "dtype", "has_scaler"),
        [("fp32", torch.float32, False), ("bf16", torch.bfloat16, False), ("fp16", torch.float16, True)],
    )
    def test_autocast_changes_the_outputs_and_not_the_weights(
        self, precision: str, dtype: torch.dtype, has_scaler: bool
    ) -> None:
        dtypes = []
        model = Weight()
        model.linear.register_forward_hook(lambda module, args, output: dtypes.append(output.dtype))
        trainer = toys.trainer(
            model=model,
            loss_fn=mean,
            train_loader=pairs(1),
            val_loader=pairs(1),
            precision=precision,
            epochs=1,
        )
        run = trainer.fit()

        assert dtypes == [dtype, dtype]  # one in training, one in the validation
        assert model.linear.weight.dtype == torch.float32
        assert (run.scaler is not None) == has_scaler

    def test_bf16_rounds_to_eight_significant_bits(self) -> None:
        recording, _ = train(pairs(257), precision="bf16")

        assert recording.outputs[0]["loss"] == 256.0  # 257 requires nine bits
        assert recording.weights == [-255.0]

    def test_fp16_skips_steps_until_the_scale_fits(self) -> None:
        model = Weight()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = ExponentialLR(optimizer, 0.5)
        recording, run = train(
            pairs(*[8] * 6),
            model=model,
            optimizer=optimizer,
            precision="fp16",
            scheduler=scheduler,
            scheduler_interval="step",
        )

        # The scale starts at 65536 and is halved until 8 * scale <= 65504, the largest fp16 number: at 4096.
        assert recording.steps == [0, 0, 0, 0, 1, 2]
        assert recording.weights == [1.0, 1.0, 1.0, 1.0, -7.0, -11.0]
        assert run.scaler.get_scale() == 4096.0
        assert optimizer.param_groups[0]["lr"] == 0.25  # stepped after the two optimizer steps, with rates 1 and 0.5

    def test_skipped_step_ends_its_accumulation_group(self) -> None:
        recording, _ = train(pairs(*[8] * 10), accumulate=2, precision="fp16")

        # The loss is halved, so 4 * scale fits from 8192 on, in the fourth group.
        assert recording.steps == [0, 0, 0, 0, 0, 0, 0, 1, 1, 2]
        assert recording.weights[-1] == 1.0 - 8 - 8


class TestClipping:
    @staticmethod
    def make_two_weights(x: float, y: float) -> nn.Module:
        class TwoWeights(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

            def forward(self, batch: Any) -> Tensor:
                return self.a * x + self.b * y

        return TwoWeights()

    @pytest.mark.parametrize(("largest", "factor"), [(10.0, 1.0), (2.5, 0.5)])
    def test_total_norm_is_clipped_and_logged(self, largest: float, factor: float) -> None:
        model = self.make_two_weights(3, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        run = toys.trainer(
            model=model, optimizer=optimizer, loss_fn=None, train_loader=[0], epochs=1, clip_grad_norm=largest
        ).fit()

        assert run.metrics.latest()["train/grad_norm"] == 5.0
        weights = [parameter.item() for parameter in model.parameters()]
        assert weights == pytest.approx([-3 * factor, -4 * factor], rel=1e-6)  # torch adds 1e-6 to the norm

    def test_norm_is_that_of_unscaled_gradients_with_a_scaler(self) -> None:
        norms = []

        class NormHook(Hook):
            def after_optimizer_step(self, run: Run) -> None:
                norms.append(run.metrics.latest()["train/grad_norm"])

        recording, _ = train(pairs(*[8] * 6), NormHook(), precision="fp16", clip_grad_norm=100.0)

        assert norms == [8.0, 8.0]
        assert recording.weights[-1] == -15.0

    def test_norm_is_that_of_the_accumulated_gradients(self) -> None:
        _, run = train(pairs(1, 3), accumulate=2, clip_grad_norm=100.0)

        assert run.metrics.latest()["train/grad_norm"] == 2.0


class TestOutputs:
    class Pair(NamedTuple):
        first: Tensor
        second: Tensor

    def test_nested_outputs_are_detached(self) -> None:
        def step(model: nn.Module, batch: Any) -> Any:
            output = model(batch[0])
            pair = TestOutputs.Pair(output, output + 1)
            return {"loss": output.mean(), "pair": pair, "deep": [{"key": (output, "text")}]}

        recording, _ = train(pairs(2), step_fn=step)
        (outputs,) = recording.outputs

        tensors = [outputs["loss"], *outputs["pair"], outputs["deep"][0]["key"][0]]
        assert [tensor.item() for tensor in tensors] == [2.0, 2.0, 3.0, 2.0]
        assert not any(tensor.requires_grad for tensor in tensors)
        assert isinstance(outputs["pair"], TestOutputs.Pair)
        assert outputs["deep"][0]["key"][1] == "text"

    def test_graph_is_freed_before_the_next_iteration(self) -> None:
        graphs: list[Any] = []
        live_counts: list[int] = []

        class Token:
            def __call__(self, *gradients: Any) -> None:
                pass

        class GraphHook(Hook):
            def after_forward(self, loss: Tensor) -> None:
                token = Token()
                assert loss.grad_fn is not None
                loss.grad_fn.register_hook(token)  # the graph keeps a reference to it
                graphs.append(weakref.ref(token))

            def after_backward(self, run: Run, loss: Tensor) -> None:
                run.log(again=loss)
                live_counts.append(sum(graph() is not None for graph in graphs))

            def after_train_iter(self) -> None:
                live_counts.append(sum(graph() is not None for graph in graphs))

        gc.disable()  # a graph that only the garbage collector frees counts as a leak
        try:
            train(pairs(1, 2, 3), GraphHook())
        finally:
            gc.enable()

        assert live_counts == [1, 0] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate": 0}, "accumulate: expected an integer >= 1, got 0."),
        ({"accumulate": 1.5}, "accumulate: expected an integer >= 1, got 1.5."),
        ({"precision": "fp8"}, "precision: expected 'fp32', 'bf16' or 'fp16', got 'fp8'."),
        ({"clip_grad_norm": 0.0}, "clip_grad_norm: expected a number > 0, got 0.0. Use None for no clipping."),
        ({"clip_grad_norm": -1}, "clip_grad_norm: expected a number > 0, got -1. Use None for no clipping."),
    ],
)
def test_invalid_setting_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_steps(Weight(), **options)

    assert str(raised.value) == message


class TestAccumulateSetter:
    def test_new_value_applies_from_the_next_group_on(self) -> None:
        class DoublingHook(Hook):
            def before_train_iter(self, run: Run, batch_idx: int) -> None:
                if batch_idx == 1:
                    run.trainer.steps.accumulate = 2

        recording, _ = train(pairs(1, 3, 5, 7, 9), DoublingHook())

        assert recording.weights == [0.0, 0.0, -4.0, -4.0, -12.0]
        assert recording.steps == [1, 1, 2, 2, 3]

    @pytest.mark.parametrize("count", [0, True, 1.5])
    def test_invalid_count_is_an_error(self, count: Any) -> None:
        trainer = toys.trainer()

        with pytest.raises(ConfigError, match=f"accumulate: expected an integer >= 1, got {count!r}"):
            trainer.steps.accumulate = count


class PartsHook(Hook):
    """Trains on each batch of three samples in parts of one and two samples, whose losses are means."""

    def train_step(self, run: Run, batch: Any) -> Any:
        values, targets = batch
        parts = [(values[:1], targets), (values[1:], targets)]
        return run.trainer.steps.train_micro_batches(run, parts, [1 / 3, 2 / 3])[-1]


class TestMicroBatchParts:
    BATCHES = ((inputs(1, 2, 6), torch.zeros(1)), (inputs(3, 3, 9), torch.zeros(1)))

    @pytest.mark.parametrize(("accumulate", "weights"), [(1, [-2.0, -7.0]), (2, [1.0, -3.0])])
    def test_gradients_of_parts_sum_to_those_of_the_batch(self, accumulate: int, weights: list[float]) -> None:
        recording, run = train(self.BATCHES, PartsHook(), accumulate=accumulate)
        full, _ = train(self.BATCHES, accumulate=accumulate)

        assert recording.weights == pytest.approx(weights, abs=1e-6)
        assert recording.weights == pytest.approx(full.weights, abs=1e-6)
        assert (run.iters_done, run.steps_done) == (2, 2 // accumulate)

    def test_hooks_receive_each_part(self) -> None:
        class SizeHook(Hook):
            sizes: tuple[int, ...] = ()

            def after_backward(self, batch: Any) -> None:
                self.sizes += (len(batch[0]),)

        size_hook = SizeHook()
        train(self.BATCHES[:1], PartsHook(), size_hook)

        assert size_hook.sizes == (1, 2)

    def test_group_is_restarted_if_a_hook_skips_a_part(self) -> None:
        class SkippingHook(Hook):
            def after_forward(self, run: Run, batch: Any) -> None:
                if run.iter == 1 and len(batch[0]) == 2:
                    run.request_skip_iter()

        recording, run = train([*self.BATCHES, *self.BATCHES], PartsHook(), SkippingHook(), accumulate=2)

        assert recording.weights == pytest.approx([1.0, 1.0, 1.0, -3.0], abs=1e-6)
        assert run.steps_done == 1


ONE, TWO = torch.tensor(3.0), torch.tensor([[2.0], [4.0]])


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (ONE, {"loss": ONE}),
        ({"loss": ONE, "scores": TWO}, {"loss": ONE, "scores": TWO}),
        (OrderedDict(loss=ONE), {"loss": ONE}),
        ((ONE, TWO), {"loss": ONE, "output": TWO}),
        ([ONE, "any"], {"loss": ONE, "output": "any"}),
        ((ONE, 1, 2), {"output": (ONE, 1, 2)}),
        (TWO, {"output": TWO}),
        ("text", {"output": "text"}),
    ],
    ids=["loss", "mapping", "ordered mapping", "loss and output", "list", "three", "multiple elements", "text"],
)
def test_outputs_are_converted_to_a_dictionary(output: Any, expected: dict[str, Any]) -> None:
    assert outputs_to_dict(output) == expected


NO_LOSS_FN = (
    "Pass `loss_fn` (for example F.cross_entropy), return a single number or a mapping with 'loss' from the model, or "
    "pass `step_fn`."
)
WITH_LOSS_FN = "Use a loader whose batches have the form (inputs, target), which `loss_fn` requires, or pass `step_fn`."


@pytest.mark.parametrize(
    ("outputs", "loss_fn", "message"),
    [
        (
            {"output": TWO},
            None,
            f"loss: missing from the outputs of the model, got {{output: tensor of shape (2, 1)}}. {NO_LOSS_FN}",
        ),
        (
            {"logits": TWO, "names": ["a"]},
            len,
            "loss: missing from the outputs of the model, got {logits: tensor of shape (2, 1), names: list}. "
            f"{WITH_LOSS_FN}",
        ),
        ({"loss": 3.0}, None, f"loss: missing from the outputs of the model, got {{loss: float}}. {NO_LOSS_FN}"),
        ({"loss": TWO}, None, "loss: expected a single number, got shape (2, 1). Take its mean or sum."),
    ],
    ids=["no loss", "no target", "no tensor", "multiple elements"],
)
def test_invalid_loss_is_an_error_with_a_fix(outputs: dict[str, Any], loss_fn: Any, message: str) -> None:
    for extract in (extract_loss, extract_scalar_loss):
        with pytest.raises(LoopError) as raised:
            extract(outputs, loss_fn)

        assert str(raised.value) == message


def test_loss_without_a_graph_can_be_evaluated_but_not_trained_on() -> None:
    assert extract_loss({"loss": ONE}, None) is ONE
    with pytest.raises(LoopError, match="loss: does not depend on any parameter that requires a gradient"):
        extract_scalar_loss({"loss": ONE}, None)


def test_loss_with_one_element_may_have_any_shape() -> None:
    loss = torch.ones(1, 1, requires_grad=True)

    assert extract_scalar_loss({"loss": loss}, None).shape == ()
