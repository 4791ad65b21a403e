"""Points of the iterations of a Keras model."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("keras", reason="Keras is not installed: run `make bridges HOST=keras`")

import keras
import numpy as np
import torch

from hookbus import Hook, HookBus
from hookbus.testing import RecordingBus
from hookbus_keras import KerasBridge

from .migration import build_line
from .migration import fit as fit_line
from .toys import INPUTS, TARGETS, build_model, copy_weights, fit


def attach(bus: HookBus, model: Any, **options: Any) -> KerasBridge:
    bridge = KerasBridge(bus, model, **options)
    bridge.attach()
    return bridge


class TestTrainStep:
    def test_outputs_are_detached_after_the_iteration(self) -> None:
        seen, model, bus = [], build_model(), HookBus()

        class Observe(Hook):
            def after_forward(self, outputs: Any) -> None:
                seen.append((outputs["output"].shape, outputs["loss"].requires_grad))

            def after_train_iter(self, outputs: Any) -> None:
                self.after_forward(outputs)

        bus.register(Observe())
        attach(bus, model)
        fit(model, batch_size=24)
        assert seen == [((24, 3), True), ((24, 3), False)]

    @pytest.mark.parametrize("point", ["before_train_iter", "after_forward"])
    def test_skipped_iteration_changes_no_weights(self, point: Any) -> None:
        bus, model = RecordingBus(), build_model()
        before = copy_weights(model)
        bus.on(point)(lambda run: run.request_skip_iter("outlier"))
        bridge = attach(bus, model)
        fit(model)
        weights = zip(copy_weights(model), before, strict=True)
        assert all(torch.equal(new, old) for new, old in weights if new.is_floating_point())
        assert (bridge.run.iters_done, bridge.run.steps_done) == (6, 0)
        assert "before_optimizer_step" not in bus.emitted_points

    def test_replaced_batch_is_trained(self) -> None:
        model, sums = build_model(), []

        class Replace(Hook):
            def before_train_iter(self, run: Any, batch: Any) -> None:
                run.replace_batch((batch[0] * 0, batch[1]))

            def after_train_iter(self, batch: Any) -> None:
                sums.append(float(batch[0].abs().sum()))

        attach(HookBus([Replace()]), model)
        fit(model)
        assert sums == [0.0] * 6

    def test_replaced_loss_is_trained_and_logged(self) -> None:
        model, losses = build_model(), []
        before = copy_weights(model)

        class Replace(Hook):
            def after_forward(self, run: Any, loss: Any) -> None:
                run.replace_loss(loss * 0)

            def after_train_iter(self, loss: Any) -> None:
                losses.append(float(loss))

        attach(HookBus([Replace()]), model)
        fit(model)
        weights = zip(copy_weights(model), before, strict=True)
        assert losses == [0.0] * 6
        assert all(torch.equal(new, old) for new, old in weights if new.is_floating_point())

    def test_loss_elsewhere_than_in_compute_loss_is_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        class Custom(keras.Sequential):  # type: ignore[misc]
            def train_step(self, data: Any) -> dict[str, Any]:
                self.zero_grad()
                loss = self(data[0], training=True).square().mean()
                loss.backward()
                with torch.no_grad():
                    self.optimizer.apply([v.value.grad for v in self.trainable_weights], self.trainable_weights)
                return {"loss": loss}

        bus, model = RecordingBus(), Custom([keras.Input((6,)), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        bridge = attach(bus, model)
        fit(model, batch_size=4)
        assert caplog.text.count("Custom does not call compute_loss, so hooks receive neither the loss") == 1
        assert (bridge.run.steps_done, bus.emitted_points.count("after_backward")) == (6, 6)
        assert "after_forward" not in bus.emitted_points

    def test_outputs_of_a_model_with_several_are_listed_by_name(self) -> None:
        keras.utils.clear_session()
        inputs, bus, names = keras.Input((6,)), HookBus(), []
        model = keras.Model(inputs, {"a": keras.layers.Dense(1, name="a")(inputs), "b": keras.layers.Dense(1)(inputs)})
        model.compile("sgd", {"a": "mse", "b": "mse"})
        bus.on("after_train_iter")(lambda outputs: names.append(sorted(outputs)))
        attach(bus, model)
        model.fit(INPUTS, {"a": INPUTS[:, :1], "b": INPUTS[:, :1]}, batch_size=24, verbose=0)
        assert names == [["a", "b", "loss"]]

    def test_single_batches_outside_of_fit_emit_nothing(self) -> None:
        bus, model = RecordingBus(), build_model()
        attach(bus, model)
        model.train_on_batch(INPUTS, TARGETS)
        model.test_on_batch(INPUTS, TARGETS)
        assert bus.emitted_points == []


@pytest.mark.parametrize("point", ["after_backward", "after_train_iter"])
def test_batch_loss_and_gradient_are_exact_at_approximate_points(point: Any) -> None:
    bus, model, seen = HookBus(), build_line(keras.optimizers.SGD(0.5, clipvalue=0.5)), []

    def record(batch: Any, loss: Any, outputs: Any) -> None:
        gradient = model.trainable_variables[0].value.grad
        seen.append((batch[0].tolist(), float(loss.detach()), float(outputs["loss"].detach()), float(gradient)))

    bus.on(point)(record)
    attach(bus, model)
    fit_line(model, 1, inputs=np.array([[1], [2], [4], [8]], dtype="float32"))
    # The gradient is minus the input. Keras clips it to -0.5, so that each step adds 0.25 to the weight.
    assert seen == [
        ([[1.0]], 0.0, 0.0, -1.0),
        ([[2.0]], -0.5, -0.5, -2.0),
        ([[4.0]], -2.0, -2.0, -4.0),
        ([[8.0]], -6.0, -6.0, -8.0),
    ]


class TestSteps:
    def test_accumulated_batches_are_one_step(self) -> None:
        bus = RecordingBus()
        model = build_model(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4))
        bridge = attach(bus, model)
        fit(model, 2)
        assert (bridge.run.iters_done, bridge.run.steps_done) == (12, 3)
        assert int(model.optimizer.iterations) == 3
        assert bus.emitted_points.count("after_backward") == 12
        assert bus.emitted_points.count("before_optimizer_step") == 3

    def test_accumulation_continues_in_the_next_training(self) -> None:
        model = build_model(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4))
        bridge = attach(HookBus(), model)
        fit(model)  # 6 batches, the last two of which are accumulated
        fit(model)
        assert (bridge.run.iters_done, bridge.run.steps_done) == (6, 2)

    def test_update_that_the_loss_scale_skips_is_no_step(self) -> None:
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
        bus, model = RecordingBus(), build_model(optimizer)
        kernel = model.trainable_variables[0].value
        bus.on("after_backward")(lambda run: run.iters_done == 2 and kernel.grad.fill_(float("inf")))
        bridge = attach(bus, model)
        fit(model)
        assert (bridge.run.iters_done, bridge.run.steps_done) == (6, 5)
        assert bus.emitted_points.count("after_backward") == 6

    def test_recompiled_model_counts_the_steps_of_its_new_optimizer(self) -> None:
        model = build_model()
        bridge = attach(HookBus(), model)
        for _ in range(2):
            fit(model)
            model.compile("adam", model.loss)
        fit(model)
        assert bridge.run.steps_done == 6
