import random

import numpy as np
import pytest
import torch
from torch import nn

from hookbus._training.isolation import call_model, copy_tensors, isolated_forward
from hookbus.data.rng import get_rng_state
from hookbus.testing import fingerprint


class TestProbing:
    @pytest.mark.parametrize("outside", [torch.no_grad, torch.enable_grad, torch.inference_mode])
    @pytest.mark.parametrize("gradients", [True, False])
    def test_gradient_mode_does_not_depend_on_the_caller(self, outside, gradients):
        model = nn.Linear(2, 1)
        with outside():
            before = torch.is_grad_enabled()
            with isolated_forward(model, gradients=gradients) as inner:
                assert inner(torch.ones(1, 2)).requires_grad is gradients
            assert torch.is_grad_enabled() is before

    def test_wrapped_model_is_unwrapped(self):
        model = nn.Linear(2, 1)
        with isolated_forward(torch.compile(model, backend="eager")) as inner:
            assert inner is model

    def test_autocast_stays_active(self):
        model = nn.Linear(2, 1)
        with torch.autocast("cpu", torch.bfloat16), isolated_forward(model) as inner:
            assert inner(torch.ones(1, 2)).dtype == torch.bfloat16
        with isolated_forward(model) as inner:
            assert inner(torch.ones(1, 2)).dtype == torch.float32

    def test_autocast_cache_does_not_affect_the_next_backward_pass(self):
        model = nn.Linear(2, 1)
        with torch.autocast("cpu", torch.bfloat16):
            with isolated_forward(model) as inner:
                inner(torch.ones(1, 2))
            model(torch.ones(1, 2)).sum().backward()
        assert model.weight.grad is not None

    @pytest.mark.parametrize("enabled", [True, False])
    def test_transformer_fast_path_is_disabled_and_restored(self, enabled):
        torch.backends.mha.set_fastpath_enabled(enabled)
        try:
            with isolated_forward(nn.ReLU()):
                assert not torch.backends.mha.get_fastpath_enabled()
            assert torch.backends.mha.get_fastpath_enabled() is enabled
        finally:
            torch.backends.mha.set_fastpath_enabled(True)


class TestCopied:
    def test_every_tensor_is_copied_and_other_values_are_unchanged(self):
        value = {"x": [torch.ones(2), (torch.zeros(1), "text")], "n": 3}
        copy = copy_tensors(value)
        assert repr(copy) == repr(value)
        assert copy["x"][0] is not value["x"][0]
        assert copy["x"][1][0] is not value["x"][1][0]

    def test_in_place_operations_of_the_model_do_not_modify_the_inputs(self):
        inputs = torch.tensor([-1.0])
        call_model(nn.ReLU(inplace=True), copy_tensors(inputs))
        assert inputs.item() == -1.0


def small_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(8, 2))
    model[2].eval()
    model.register_buffer("nothing", None)
    return model


def get_state(model):
    """Return the complete state that must be restored, in comparable form."""
    return [
        fingerprint(dict(model.named_parameters())),
        fingerprint(dict(model.named_buffers())),
        [None if parameter.grad is None else fingerprint(parameter.grad) for parameter in model.parameters()],
        [module.training for module in model.modules()],
        [[id(hook) for hook in module._forward_hooks.values()] for module in model.modules()],
        fingerprint(get_rng_state()),
    ]


def disturb(model):
    """Modify every part of the state."""
    model.train()
    call_model(model, torch.rand(3, 1, 4, 4)).sum().backward()
    model[1].running_mean = model[1].running_mean + 1
    model.nothing = torch.ones(1)
    model[0].register_forward_hook(lambda *args: None)
    model[0].register_forward_pre_hook(lambda *args: None)
    for draw in (random.random, np.random.random, lambda: torch.rand(1)):
        draw()


class MergingLinear(nn.Linear):
    """Linear layer that merges its adapter into the weight when it switches to evaluation mode."""

    def train(self, mode=True):
        if self.training and not mode:
            self.weight.data += 1
        return super().train(mode)


class TestUnchanged:
    @pytest.fixture
    def model(self):
        model = small_model()
        call_model(model, torch.rand(3, 1, 4, 4)).sum().backward()
        model[0].register_forward_hook(lambda *args: None)
        return model

    def test_modules_do_not_merge_their_weights(self):
        model = MergingLinear(2, 2)
        before = get_state(model)
        with isolated_forward(model, gradients=True) as inner:
            assert not inner.training
        assert get_state(model) == before

    def test_state_is_restored_on_exit(self, model):
        before = get_state(model)
        with isolated_forward(model, gradients=True) as inner:
            disturb(inner)
            assert get_state(model) != before
        assert get_state(model) == before
        assert model.nothing is None

    def test_state_is_restored_after_an_exception(self, model):
        def fail():
            with isolated_forward(model, gradients=True) as inner:
                disturb(inner)
                raise ZeroDivisionError

        before = get_state(model)
        with pytest.raises(ZeroDivisionError):
            fail()
        assert get_state(model) == before

    def test_gradients_and_buffers_are_the_same_objects(self, model):
        gradients, buffers = [parameter.grad for parameter in model.parameters()], list(model.buffers())
        with isolated_forward(model, gradients=True) as inner:
            disturb(inner)
        assert all(a is b.grad for a, b in zip(gradients, model.parameters(), strict=True))
        assert all(a is b for a, b in zip(buffers, model.buffers(), strict=True))

    def test_model_is_in_evaluation_mode_without_gradients(self, model):
        with isolated_forward(model, gradients=True) as inner:
            assert not any(module.training for module in inner.modules())
            assert all(parameter.grad is None for parameter in inner.parameters())

    def test_other_hooks_stay_registered(self, model):
        calls = []
        model[0].register_forward_hook(lambda *args: calls.append(1))
        for _ in range(3):
            with isolated_forward(model, gradients=True) as inner:
                inner[0].register_forward_hook(lambda *args: calls.append(9))
                call_model(inner, torch.rand(1, 1, 4, 4))
        call_model(model, torch.rand(3, 1, 4, 4))
        assert calls == [1, 9, 1, 9, 1, 9, 1]
        assert len(model[0]._forward_hooks) == 2

    def test_wrapped_model_is_unwrapped(self, model):
        with isolated_forward(nn.DataParallel(model)) as inner:
            assert inner is model

    @pytest.mark.parametrize("in_place", [True, False])
    def test_hooks_of_a_compiled_model_are_called(self, model, in_place):
        compiled = torch.compile(model, backend="eager") if not in_place else model
        if in_place:
            model.compile(backend="eager")
        inputs, calls = torch.rand(3, 1, 4, 4), []
        call_model(compiled, inputs)
        with isolated_forward(compiled) as inner:
            inner[0].register_forward_hook(lambda *args: calls.append(1))
            call_model(inner, inputs)
        call_model(compiled, inputs)
        assert calls == [1]

    def test_no_recompilation_is_triggered(self, model):
        class Classifier(nn.Module):  # torch before 2.13 does not compile `nn.Sequential` in place
            def __init__(self):
                super().__init__()
                self.layers = model

            def forward(self, x):
                return self.layers(x)

        compiled, classifier = [], Classifier()
        classifier.compile(backend=lambda graph, inputs: compiled.append(graph) or graph)
        call_model(classifier, torch.rand(3, 1, 4, 4))
        graphs = len(compiled)
        with isolated_forward(classifier, gradients=True) as inner:
            inner.layers[0].register_forward_hook(lambda *args: None)
            call_model(inner, torch.rand(2, 1, 4, 4))
        assert len(compiled) == graphs > 0


class TestCall:
    def test_model_is_called_as_in_the_training_loop(self):
        class Add(nn.Module):
            def forward(self, a, b=10):
                return a + b

        assert [call_model(Add(), inputs) for inputs in (1, (1, 2), {"a": 1, "b": 3})] == [11, 3, 4]

    def test_images_of_different_sizes_are_passed_as_a_list(self):
        assert call_model(nn.Identity(), [1, 2]) == [1, 2]
