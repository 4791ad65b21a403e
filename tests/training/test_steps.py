from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR

from hookbus.errors import ConfigError, LoopError
from hookbus.hook import Hook
from hookbus.metrics import Metrics
from hookbus.run import Run
from hookbus.training.steps import Steps
from tests import toys


class Weight(nn.Module):
    """The product of a number, 1 at first, and the input; or something made of it."""

    def __init__(self, returned: Callable[[Tensor], Any] = lambda output: output) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.linear.weight)
        self.returned = returned

    def forward(self, x: Tensor, bias: Any = 0.0) -> Any:
        return self.returned(self.linear(x) + bias)

    @property
    def value(self) -> float:
        return self.linear.weight.item()


def mean(output: Tensor, target: Any = None) -> Tensor:
    """A loss whose gradient is the mean of the inputs."""
    return output.mean()


def inputs(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).reshape(-1, 1)


def steps(model: nn.Module, **options: Any) -> Steps:
    given: dict[str, Any] = {
        "optimizer": None,
        "loss_fn": None,
        "step_fn": None,
        "accumulate": 1,
        "precision": "fp32",
        "clip_grad_norm": None,
        "device": torch.device("cpu"),
        "on_update": lambda: None,
    }
    return Steps(model, **{**given, **options})


class Watch(Hook):
    """Notes the weight and the counts after each iteration."""

    def __init__(self, model: Weight) -> None:
        super().__init__()
        self.model_watched = model
        self.weights: list[float] = []
        self.steps: list[int] = []
        self.outputs: list[Any] = []

    def after_train_iter(self, run: Run, outputs: Any) -> None:
        self.weights.append(self.model_watched.value)
        self.steps.append(run.steps_done)
        self.outputs.append(outputs)


def train(batches: Sequence[Any], *hooks: object, model: Weight | None = None, **options: Any) -> tuple[Watch, Run]:
    """Train a weight by plain gradient descent with a learning rate of 1, one epoch unless told otherwise."""
    model = model or Weight()
    watch = Watch(model)
    limit = {} if "iterations" in options else {"epochs": 1}
    given = {"optimizer": torch.optim.SGD(model.parameters(), lr=1.0), "loss_fn": mean, "train_loader": batches}
    run = toys.trainer(watch, *hooks, model=model, **{**limit, **given, **options}).fit()
    return watch, run


def pairs(*values: float) -> list[Any]:
    """Batches of one input each, with a target that nobody looks at."""
    return [(inputs(value), torch.zeros(1)) for value in values]


class TestForward:
    """The model 1 * x + bias is called with x = 2 and 4; its mean is 3."""

    def test_an_output_with_a_loss_function_gets_its_loss(self) -> None:
        outputs = steps(Weight(), loss_fn=nn.functional.l1_loss).forward((inputs(2, 4), inputs(1, 1)))

        assert outputs["loss"] == 2.0  # the mean of 2 - 1 and 4 - 1
        assert outputs["output"].tolist() == [[2.0], [4.0]]

    def test_a_mapping_with_a_loss_function_keeps_its_items_and_gets_a_loss(self) -> None:
        model = Weight(lambda output: {"logits": output.sum(), "loss": -1})
        outputs = steps(model, loss_fn=lambda output, target: output["logits"] - target).forward((inputs(2, 4), 5))

        assert outputs == {"logits": 6.0, "loss": 1.0}

    def test_several_inputs_come_before_the_target(self) -> None:
        outputs = steps(Weight(), loss_fn=lambda output, target: output.sum() * target).forward([inputs(2, 4), 1, 10])

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
    def test_without_a_loss_function_the_whole_batch_is_for_the_model(self, batch: Any, loss: float) -> None:
        assert steps(Weight(mean)).forward(batch) == {"loss": loss}

    @pytest.mark.parametrize(
        ("step_fn", "found"),
        [
            (lambda model, batch: model(batch["there"]).sum(), {"loss": 6.0}),
            (lambda model, batch: {"loss": model(batch["there"]).sum(), "extra": 7}, {"loss": 6.0, "extra": 7}),
        ],
    )
    def test_a_step_of_the_users_replaces_model_and_loss(self, step_fn: Any, found: Any) -> None:
        made = steps(Weight(), step_fn=step_fn, loss_fn=lambda *_: pytest.fail("the loss function was called"))

        assert made.forward({"there": inputs(2, 4)}) == found

    def test_a_batch_is_judged_in_the_same_way(self) -> None:
        trainer = toys.trainer(model=Weight(), loss_fn=mean)

        assert trainer.steps.eval_step(trainer.bus.current, (inputs(2, 4), None))["loss"] == 3.0


class TestLoss:
    @pytest.mark.parametrize(
        ("returned", "loss_fn", "batch", "message"),
        [
            (
                lambda output: output,
                None,
                inputs(2, 4),
                "There is no loss to train on; the model returned {output: tensor of shape (2, 1)}. Give loss_fn= (for "
                "example F.cross_entropy), let the model return a single number or a mapping with 'loss', or give "
                "step_fn=.",
            ),
            (
                lambda output: {"loss": output},
                None,
                inputs(2, 4),
                "The loss has shape (2, 1); training needs a single number: take its mean or sum.",
            ),
            (
                lambda output: output.mean().detach(),
                None,
                inputs(2, 4),
                "The loss does not depend on any parameter that requires a gradient: was it detached, or is every "
                "parameter frozen?",
            ),
        ],
        ids=["no loss", "several numbers", "detached"],
    )
    def test_one_that_cannot_be_trained_on_says_what_to_do(
        self, returned: Any, loss_fn: Any, batch: Any, message: str
    ) -> None:
        with pytest.raises(LoopError) as raised:
            train([batch], model=Weight(returned), loss_fn=loss_fn)

        assert str(raised.value) == message

    def test_a_single_number_in_any_shape_will_do(self) -> None:
        watch, _ = train(pairs(2), loss_fn=lambda output, target: output)

        assert watch.weights == [-1.0]
        assert watch.outputs[0]["loss"].shape == ()

    def test_one_that_is_not_a_number_is_trained_on_and_told(self) -> None:
        found = []

        class Looks(Hook):
            def after_train_epoch(self, metrics: Metrics) -> None:
                found.append(metrics.nonfinite)

        losses = iter([1.0, float("nan"), 1.0])
        watch, run = train(pairs(0, 0, 0), Looks(), loss_fn=lambda output, _: output.sum() * 0 + next(losses))

        assert found == [{"train/loss": 1}]
        assert (run.outcome, watch.steps) == ("finished", [1, 2, 3])


class TestAccumulation:
    def test_an_update_is_made_of_the_mean_of_its_micro_batches(self) -> None:
        watch, _ = train(pairs(1, 3, 2, 8), accumulate=2)

        assert watch.weights == [1.0, -1.0, -1.0, -6.0]  # minus the mean of 1 and 3, minus that of 2 and 8
        assert watch.steps == [0, 1, 1, 2]

    def test_the_loss_that_hooks_see_is_that_of_the_micro_batch(self) -> None:
        watch, _ = train(pairs(1, 3), accumulate=2)

        assert [outputs["loss"].item() for outputs in watch.outputs] == [1.0, 3.0]

    def test_a_group_goes_on_over_the_end_of_an_epoch(self) -> None:
        iterations: list[tuple[int, int]] = []

        class Updates(Hook):
            def after_optimizer_step(self, run: Run, step: int) -> None:
                iterations.append((step, run.iter + 1))

        watch, run = train(pairs(1, 2, 3, 4, 5), Updates(), accumulate=2, epochs=2)

        assert iterations == [(1, 2), (2, 4), (3, 6), (4, 8), (5, 10)]
        assert watch.steps == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
        # 1 - mean(1, 2) - mean(3, 4) - mean(5, 1) - mean(2, 3) - mean(4, 5)
        assert watch.weights[-1] == 1 - 1.5 - 3.5 - 3 - 2.5 - 4.5
        assert not run.mid_accumulation

    def test_what_is_left_over_at_the_end_of_training_is_no_update(self) -> None:
        watch, run = train(pairs(1, 2, 3), accumulate=2)

        assert (run.iters_done, run.steps_done, run.mid_accumulation) == (3, 1, True)
        assert watch.weights == [1.0, -0.5, -0.5]

    def test_the_gradients_are_those_of_the_large_batch(self) -> None:
        gradients = []

        class Keeps(Hook):
            def before_optimizer_step(self, run: Run) -> None:
                assert run.model is not None
                found = (parameter.grad for parameter in run.model.parameters())
                gradients.append([gradient.clone() for gradient in found if gradient is not None])

        x = torch.randint(-8, 8, (8, 4), generator=torch.Generator().manual_seed(0)).float()
        y = torch.randint(-8, 8, (8, 2), generator=torch.Generator().manual_seed(1)).float()
        for accumulate in (1, 4):
            model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
            for parameter in model.parameters():  # small whole numbers, of which every sum is exact
                nn.init.constant_(parameter, 1.0)
            toys.trainer(
                Keeps(),
                model=model,
                loss_fn=nn.functional.mse_loss,
                train_loader=list(zip(x.chunk(accumulate), y.chunk(accumulate), strict=True)),
                accumulate=accumulate,
                epochs=1,
            ).fit()

        whole, accumulated = gradients
        assert len(whole) == 4
        assert all(map(torch.equal, whole, accumulated))
        assert all(gradient.abs().sum() > 0 for gradient in whole)

    def test_an_iteration_that_a_hook_leaves_out_is_no_part_of_a_group(self) -> None:
        class Skips(Hook):
            def before_train_iter(self, run: Run, batch_idx: int) -> None:
                if batch_idx == 1:
                    run.request_skip_iter("a bad batch")

        watch, run = train(pairs(1, 100, 3), Skips(), accumulate=2)

        assert watch.weights == [1.0, 1.0, -1.0]
        assert watch.outputs[1] is None
        assert (run.iters_done, run.steps_done) == (3, 1)

    def test_neither_is_one_that_is_left_out_after_its_forward(self) -> None:
        class Skips(Hook):
            def after_forward(self, run: Run, batch_idx: int, loss: torch.Tensor) -> None:
                if batch_idx == 1:
                    run.request_skip_iter("a bad loss")

        watch, run = train(pairs(1, 100, 3), Skips(), accumulate=2)

        assert watch.weights == [1.0, 1.0, -1.0]
        assert watch.outputs[1]["loss"].item() == 100.0
        assert not watch.outputs[1]["loss"].requires_grad
        assert (run.iters_done, run.steps_done) == (3, 1)

    def test_a_step_that_failed_leaves_no_gradients_for_the_next(self) -> None:
        class FailsOnce(Hook):
            failed = False

            def before_optimizer_step(self) -> None:
                if not self.failed:
                    self.failed = True
                    raise ZeroDivisionError

        model = Weight()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        trainer = toys.trainer(
            FailsOnce(), model=model, optimizer=optimizer, loss_fn=mean, train_loader=pairs(3), epochs=1
        )
        with pytest.raises(ZeroDivisionError):
            trainer.fit()
        trainer.fit()

        assert model.value == -2.0


class TestEvents:
    class Story(Hook):
        def __init__(self, model: Weight) -> None:
            super().__init__()
            self.model_watched = model
            self.told: list[Any] = []

        def tell(self, point: str, **more: Any) -> None:
            gradient = self.model_watched.linear.weight.grad
            self.told.append((point, None if gradient is None else gradient.item(), self.model_watched.value))

        def after_forward(self, batch: Any, outputs: Any, loss: Tensor) -> None:
            assert loss is outputs["loss"]
            assert loss.requires_grad
            self.tell("after_forward")

        def after_backward(self, batch: Any, outputs: Any, loss: Tensor) -> None:
            self.tell("after_backward")

        def before_optimizer_step(self) -> None:
            self.tell("before_optimizer_step")

        def after_optimizer_step(self) -> None:
            self.tell("after_optimizer_step")

        def after_train_iter(self) -> None:
            self.tell("after_train_iter")

    def test_each_comes_when_gradient_and_weight_are_as_it_says(self) -> None:
        model = Weight()
        story = self.Story(model)
        train(pairs(1, 3, 2), story, model=model, accumulate=2)

        assert story.told == [
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
    def test_the_model_computes_in_it_and_keeps_its_weights(
        self, precision: str, dtype: torch.dtype, has_scaler: bool
    ) -> None:
        seen = []
        model = Weight()
        model.linear.register_forward_hook(lambda module, given, output: seen.append(output.dtype))
        trainer = toys.trainer(
            model=model,
            loss_fn=mean,
            train_loader=pairs(1),
            val_loader=pairs(1),
            precision=precision,
            epochs=1,
        )
        run = trainer.fit()

        assert seen == [dtype, dtype]  # one in training, one in the validation
        assert model.linear.weight.dtype == torch.float32
        assert (run.scaler is not None) == has_scaler

    def test_in_bf16_numbers_are_rounded_to_eight_bits(self) -> None:
        watch, _ = train(pairs(257), precision="bf16")

        assert watch.outputs[0]["loss"] == 256.0  # 257 takes nine
        assert watch.weights == [-255.0]

    def test_in_fp16_updates_are_left_out_until_the_scale_fits(self) -> None:
        model = Weight()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = ExponentialLR(optimizer, 0.5)
        watch, run = train(
            pairs(*[8] * 6),
            model=model,
            optimizer=optimizer,
            precision="fp16",
            scheduler=scheduler,
            scheduler_interval="step",
        )

        # The scale begins at 65536 and is halved until 8 times it is no more than 65504: at 4096, after four times.
        assert watch.steps == [0, 0, 0, 0, 1, 2]
        assert watch.weights == [1.0, 1.0, 1.0, 1.0, -7.0, -11.0]
        assert run.scaler.get_scale() == 4096.0
        assert optimizer.param_groups[0]["lr"] == 0.25  # stepped by the two updates, with rates 1 and 0.5

    def test_an_update_that_was_left_out_ends_its_group(self) -> None:
        watch, _ = train(pairs(*[8] * 10), accumulate=2, precision="fp16")

        # Half the loss: 4 times the scale fits from 8192 on, which is the fourth group.
        assert watch.steps == [0, 0, 0, 0, 0, 0, 0, 1, 1, 2]
        assert watch.weights[-1] == 1.0 - 8 - 8


class TestClipping:
    @staticmethod
    def two(x: float, y: float) -> nn.Module:
        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

            def forward(self, batch: Any) -> Tensor:
                return self.a * x + self.b * y

        return Two()

    @pytest.mark.parametrize(("largest", "factor"), [(10.0, 1.0), (2.5, 0.5)])
    def test_the_norm_is_that_of_all_gradients_together_and_is_logged(self, largest: float, factor: float) -> None:
        model = self.two(3, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        run = toys.trainer(
            model=model, optimizer=optimizer, loss_fn=None, train_loader=[0], epochs=1, clip_grad_norm=largest
        ).fit()

        assert run.metrics.latest()["train/grad_norm"] == 5.0
        found = [parameter.item() for parameter in model.parameters()]
        assert found == pytest.approx([-3 * factor, -4 * factor], rel=1e-6)  # torch adds 1e-6 to the norm

    def test_with_a_scaler_it_is_the_norm_of_the_true_gradients(self) -> None:
        norms = []

        class Norms(Hook):
            def after_optimizer_step(self, run: Run) -> None:
                norms.append(run.metrics.latest()["train/grad_norm"])

        watch, _ = train(pairs(*[8] * 6), Norms(), precision="fp16", clip_grad_norm=100.0)

        assert norms == [8.0, 8.0]
        assert watch.weights[-1] == -15.0

    def test_it_is_the_norm_of_the_whole_group(self) -> None:
        _, run = train(pairs(1, 3), accumulate=2, clip_grad_norm=100.0)

        assert run.metrics.latest()["train/grad_norm"] == 2.0


class TestOutputs:
    class Pair(NamedTuple):
        first: Tensor
        second: Tensor

    def test_are_detached_however_deep_they_lie(self) -> None:
        def step(model: nn.Module, batch: Any) -> Any:
            output = model(batch[0])
            pair = TestOutputs.Pair(output, output + 1)
            return {"loss": output.mean(), "pair": pair, "deep": [{"there": (output, "text")}]}

        watch, _ = train(pairs(2), step_fn=step)
        (outputs,) = watch.outputs

        found = [outputs["loss"], *outputs["pair"], outputs["deep"][0]["there"][0]]
        assert [each.item() for each in found] == [2.0, 2.0, 3.0, 2.0]
        assert not any(each.requires_grad for each in found)
        assert isinstance(outputs["pair"], TestOutputs.Pair)
        assert outputs["deep"][0]["there"][1] == "text"

    def test_no_graph_is_alive_when_the_next_iteration_begins(self) -> None:
        graphs: list[Any] = []
        alive: list[int] = []

        class Token:
            def __call__(self, *gradients: Any) -> None:
                pass

        class Looks(Hook):
            def after_forward(self, loss: Tensor) -> None:
                token = Token()
                assert loss.grad_fn is not None
                loss.grad_fn.register_hook(token)  # the graph keeps it alive
                graphs.append(weakref.ref(token))

            def after_backward(self, run: Run, loss: Tensor) -> None:
                run.log(again=loss)
                alive.append(sum(graph() is not None for graph in graphs))

            def after_train_iter(self) -> None:
                alive.append(sum(graph() is not None for graph in graphs))

        gc.disable()  # what only the collector frees would be alive
        try:
            train(pairs(1, 2, 3), Looks())
        finally:
            gc.enable()

        assert alive == [1, 0] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate": 0}, "accumulate: 0 is not a whole number of at least 1."),
        ({"accumulate": 1.5}, "accumulate: 1.5 is not a whole number of at least 1."),
        ({"precision": "fp8"}, "precision: 'fp8' is none of fp32, bf16, fp16."),
        ({"clip_grad_norm": 0.0}, "clip_grad_norm: 0.0 is not more than 0; None is for no clipping."),
        ({"clip_grad_norm": -1}, "clip_grad_norm: -1 is not more than 0; None is for no clipping."),
    ],
)
def test_settings_that_do_not_hold_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        steps(Weight(), **options)

    assert str(raised.value) == message


class TestChangingTheAccumulation:
    def test_holds_from_the_next_group_on(self) -> None:
        class Doubles(Hook):
            def before_train_iter(self, run: Run, batch_idx: int) -> None:
                if batch_idx == 1:
                    run.trainer.steps.accumulate = 2

        watch, _ = train(pairs(1, 3, 5, 7, 9), Doubles())

        assert watch.weights == [0.0, 0.0, -4.0, -4.0, -12.0]
        assert watch.steps == [1, 1, 2, 2, 3]

    @pytest.mark.parametrize("count", [0, True, 1.5])
    def test_refuses_what_is_no_count(self, count: Any) -> None:
        trainer = toys.trainer()

        with pytest.raises(ConfigError, match=f"accumulate: {count!r} is not a whole number"):
            trainer.steps.accumulate = count


class InParts(Hook):
    """Trains on each batch of three samples as one and two, whose losses are means."""

    def train_step(self, run: Run, batch: Any) -> Any:
        values, targets = batch
        parts = [(values[:1], targets), (values[1:], targets)]
        return run.trainer.steps.train_parts(run, parts, [1 / 3, 2 / 3])[-1]


class TestTrainingInParts:
    BATCHES = ((inputs(1, 2, 6), torch.zeros(1)), (inputs(3, 3, 9), torch.zeros(1)))

    @pytest.mark.parametrize(("accumulate", "weights"), [(1, [-2.0, -7.0]), (2, [1.0, -3.0])])
    def test_adds_up_to_the_gradients_of_the_whole(self, accumulate: int, weights: list[float]) -> None:
        watch, run = train(self.BATCHES, InParts(), accumulate=accumulate)
        whole, _ = train(self.BATCHES, accumulate=accumulate)

        assert watch.weights == pytest.approx(weights, abs=1e-6)
        assert watch.weights == pytest.approx(whole.weights, abs=1e-6)
        assert (run.iters_done, run.steps_done) == (2, 2 // accumulate)

    def test_shows_each_part_to_hooks(self) -> None:
        class Looks(Hook):
            sizes: tuple[int, ...] = ()

            def after_backward(self, batch: Any) -> None:
                self.sizes += (len(batch[0]),)

        looks = Looks()
        train(self.BATCHES[:1], InParts(), looks)

        assert looks.sizes == (1, 2)

    def test_lets_a_group_begin_anew_where_a_hook_leaves_a_part_out(self) -> None:
        class Skips(Hook):
            def after_forward(self, run: Run, batch: Any) -> None:
                if run.iter == 1 and len(batch[0]) == 2:
                    run.request_skip_iter()

        watch, run = train([*self.BATCHES, *self.BATCHES], InParts(), Skips(), accumulate=2)

        assert watch.weights == pytest.approx([1.0, 1.0, 1.0, -3.0], abs=1e-6)
        assert run.steps_done == 1
