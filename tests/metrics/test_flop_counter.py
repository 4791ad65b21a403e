import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from hookbus.metrics import FlopCounter


def count_flops(work):
    counting = FlopCounter()
    try:
        work()
    finally:
        flops = counting.stop()
    return flops


def test_matrix_product_is_counted_forward_and_backward():
    layer, x = nn.Linear(3, 5), torch.ones(4, 3, requires_grad=True)
    # Forward 2*4*3*5; backward as much again for the weight and for the input.
    assert count_flops(lambda: layer(x).sum().backward()) == 3 * 2 * 4 * 3 * 5


def test_backward_of_a_convolution_is_counted_exactly():
    layer, x = nn.Conv2d(2, 3, 3, padding=1), torch.ones(4, 2, 8, 8, requires_grad=True)
    forward = 2 * (4 * 8 * 8) * (3 * 3 * 2) * 3
    assert count_flops(lambda: layer(x).sum().backward()) == 3 * forward


def test_attention_is_counted_on_the_cpu():
    q, k, v = (torch.randn(2, 3, n, 8, requires_grad=True) for n in (5, 7, 7))
    product = 2 * (2 * 3) * 5 * 7 * 8
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        flops = count_flops(lambda: functional.scaled_dot_product_attention(q, k, v).sum().backward())
    assert flops == (2 + 5) * product


def test_counting_does_not_change_the_output():
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 5), torch.randn(4, 3)
    expected = layer(x)
    counting = FlopCounter()
    output = layer(x)
    counting.stop()
    assert torch.equal(output, expected)


def test_compiled_function_runs_compiled_after_counting():
    calls = []

    def backend(graph, _):
        return lambda *args: calls.append("compiled") or graph.forward(*args)

    layer = nn.Linear(3, 5)
    compiled, x = torch.compile(layer, backend=backend), torch.ones(4, 3)
    try:
        first = count_flops(lambda: compiled(x))
        compiled(x)
        second = count_flops(lambda: compiled(x))
        compiled(x)
    finally:
        torch.compiler.reset()
    assert (first, second, calls) == (2 * 4 * 3 * 5, 2 * 4 * 3 * 5, ["compiled"] * 2)


def test_counting_registers_no_module_hooks():
    hooks = []
    count_flops(lambda: hooks.extend([*_global_forward_hooks, *_global_forward_pre_hooks]))
    assert hooks == []


def test_counting_preserves_the_module_hooks():
    layer, calls = nn.Linear(3, 5), []
    layer.register_forward_hook(lambda *_: calls.append("user hook"))
    before = [len(hooks) for hooks in (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks)]
    for _ in range(3):
        count_flops(lambda: layer(torch.ones(4, 3)).sum().backward())
    assert [len(hooks) for hooks in (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks)] == before
    layer(torch.ones(4, 3))
    assert calls == ["user hook"] * 4
