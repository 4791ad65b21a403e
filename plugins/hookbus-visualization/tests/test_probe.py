import pytest
import torch
from torch import nn

from hookbus_visualization.probe import copied, modules_of, probing
from hookbus_visualization.unchanged import call


class TestProbing:
    @pytest.mark.parametrize("outside", [torch.no_grad, torch.enable_grad, torch.inference_mode])
    @pytest.mark.parametrize("gradients", [True, False])
    def test_decides_on_gradients_whatever_holds_outside(self, outside, gradients):
        model = nn.Linear(2, 1)
        with outside():
            before = torch.is_grad_enabled()
            with probing(model, gradients=gradients) as inner:
                assert inner(torch.ones(1, 2)).requires_grad is gradients
            assert torch.is_grad_enabled() is before

    def test_gives_the_module_inside_its_wrappers(self):
        model = nn.Linear(2, 1)
        with probing(torch.compile(model, backend="eager")) as inner:
            assert inner is model

    def test_leaves_autocast_on(self):
        model = nn.Linear(2, 1)
        with torch.autocast("cpu", torch.bfloat16), probing(model) as inner:
            assert inner(torch.ones(1, 2)).dtype == torch.bfloat16
        with probing(model) as inner:
            assert inner(torch.ones(1, 2)).dtype == torch.float32

    def test_inside_autocast_leaves_the_next_pass_its_gradients(self):
        model = nn.Linear(2, 1)
        with torch.autocast("cpu", torch.bfloat16):
            with probing(model) as inner:
                inner(torch.ones(1, 2))
            model(torch.ones(1, 2)).sum().backward()
        assert model.weight.grad is not None

    @pytest.mark.parametrize("enabled", [True, False])
    def test_takes_transformers_off_their_fast_path_and_puts_them_back(self, enabled):
        torch.backends.mha.set_fastpath_enabled(enabled)
        try:
            with probing(nn.ReLU()):
                assert not torch.backends.mha.get_fastpath_enabled()
            assert torch.backends.mha.get_fastpath_enabled() is enabled
        finally:
            torch.backends.mha.set_fastpath_enabled(True)


class TestCopies:
    def test_are_made_of_every_tensor_and_of_nothing_else(self):
        value = {"x": [torch.ones(2), (torch.zeros(1), "text")], "n": 3}
        copy = copied(value)
        assert repr(copy) == repr(value)
        assert copy["x"][0] is not value["x"][0]
        assert copy["x"][1][0] is not value["x"][1][0]

    def test_keep_the_inputs_safe_from_a_model_that_changes_them(self):
        inputs = torch.tensor([-1.0])
        call(nn.ReLU(inplace=True), copied(inputs))
        assert inputs.item() == -1.0


class TestModules:
    def test_are_found_by_path(self):
        model = nn.Sequential(nn.Linear(2, 1), nn.Sequential(nn.ReLU()))
        assert modules_of(model) == {"": model, "0": model[0], "1": model[1], "1.0": model[1][0]}

    def test_have_the_path_that_they_had_before_they_were_compiled(self):
        inner = nn.Sequential(nn.ReLU())
        model = nn.Sequential(torch.compile(inner, backend="eager"))
        assert modules_of(model) == {"": model, "0": inner, "0.0": inner[0]}
        assert modules_of(torch.compile(inner, backend="eager")) == {"": inner, "0": inner[0]}
