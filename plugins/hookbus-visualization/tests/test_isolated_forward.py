import pytest
import torch
from torch import nn

from hookbus_visualization.isolated_forward import call_model, copy_tensors, isolated_forward


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
