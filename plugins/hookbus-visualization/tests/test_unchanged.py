import random

import numpy as np
import pytest
import torch
from torch import nn

from hookbus.testing import fingerprint
from hookbus.training.rng import get_rng_state
from hookbus_visualization.unchanged import call, unchanged


def small():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(8, 2))
    model[2].eval()
    model.register_buffer("nothing", None)
    return model


def state(model):
    """Everything that may not change, as one text."""
    return [
        fingerprint(dict(model.named_parameters())),
        fingerprint(dict(model.named_buffers())),
        [None if each.grad is None else fingerprint(each.grad) for each in model.parameters()],
        [module.training for module in model.modules()],
        [[id(hook) for hook in module._forward_hooks.values()] for module in model.modules()],
        fingerprint(get_rng_state()),
    ]


def disturb(model):
    """Change all that there is to change."""
    model.train()
    call(model, torch.rand(3, 1, 4, 4)).sum().backward()
    model[1].running_mean = model[1].running_mean + 1
    model.nothing = torch.ones(1)
    model[0].register_forward_hook(lambda *args: None)
    model[0].register_forward_pre_hook(lambda *args: None)
    for draw in (random.random, np.random.random, lambda: torch.rand(1)):
        draw()


class Merging(nn.Linear):
    """As low-rank adapters do: at the change to evaluation it puts what it has learned into its weight."""

    def train(self, mode=True):
        if self.training and not mode:
            self.weight.data += 1
        return super().train(mode)


class TestUnchanged:
    @pytest.fixture
    def model(self):
        model = small()
        call(model, torch.rand(3, 1, 4, 4)).sum().backward()
        model[0].register_forward_hook(lambda *args: None)
        return model

    def test_does_not_make_modules_merge_their_weights(self):
        model = Merging(2, 2)
        before = state(model)
        with unchanged(model) as inner:
            assert not inner.training
        assert state(model) == before

    def test_puts_everything_back(self, model):
        before = state(model)
        with unchanged(model) as inner:
            disturb(inner)
            assert state(model) != before
        assert state(model) == before
        assert model.nothing is None

    def test_puts_it_back_when_something_fails(self, model):
        def fail():
            with unchanged(model) as inner:
                disturb(inner)
                raise ZeroDivisionError

        before = state(model)
        with pytest.raises(ZeroDivisionError):
            fail()
        assert state(model) == before

    def test_keeps_the_very_tensors(self, model):
        gradients, buffers = [each.grad for each in model.parameters()], list(model.buffers())
        with unchanged(model) as inner:
            disturb(inner)
        assert all(a is b.grad for a, b in zip(gradients, model.parameters(), strict=True))
        assert all(a is b for a, b in zip(buffers, model.buffers(), strict=True))

    def test_gives_a_model_that_evaluates_without_gradients_in_it(self, model):
        with unchanged(model) as inner:
            assert not any(module.training for module in inner.modules())
            assert all(each.grad is None for each in inner.parameters())

    def test_leaves_hooks_of_others_at_work(self, model):
        calls = []
        model[0].register_forward_hook(lambda *args: calls.append(1))
        for _ in range(3):
            with unchanged(model) as inner:
                inner[0].register_forward_hook(lambda *args: calls.append(9))
                call(inner, torch.rand(1, 1, 4, 4))
        call(model, torch.rand(3, 1, 4, 4))
        assert calls == [1, 9, 1, 9, 1, 9, 1]
        assert len(model[0]._forward_hooks) == 2

    def test_gives_what_is_inside_a_wrapper(self, model):
        with unchanged(nn.DataParallel(model)) as inner:
            assert inner is model

    @pytest.mark.parametrize("in_place", [True, False])
    def test_sees_hooks_in_a_model_that_was_compiled_before(self, model, in_place):
        compiled = torch.compile(model, backend="eager") if not in_place else model
        if in_place:
            model.compile(backend="eager")
        inputs, seen = torch.rand(3, 1, 4, 4), []
        call(compiled, inputs)
        with unchanged(compiled) as inner:
            inner[0].register_forward_hook(lambda *args: seen.append(1))
            call(inner, inputs)
        call(compiled, inputs)
        assert seen == [1]

    def test_compiles_nothing_anew(self, model):
        compiled = []
        model.compile(backend=lambda graph, inputs: compiled.append(graph) or graph)
        call(model, torch.rand(3, 1, 4, 4))
        graphs = len(compiled)
        with unchanged(model) as inner:
            inner[0].register_forward_hook(lambda *args: None)
            call(inner, torch.rand(2, 1, 4, 4))
        assert len(compiled) == graphs > 0


class TestCall:
    def test_gives_the_model_what_the_loop_would(self):
        class Add(nn.Module):
            def forward(self, a, b=10):
                return a + b

        assert [call(Add(), each) for each in (1, (1, 2), {"a": 1, "b": 3})] == [11, 3, 4]

    def test_gives_images_of_several_sizes_as_a_list(self):
        assert call(nn.Identity(), [1, 2]) == [1, 2]
