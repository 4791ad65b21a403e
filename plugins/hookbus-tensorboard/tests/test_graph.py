import pytest
import torch
from torch import nn

from hookbus_tensorboard.inputs import trace_graph


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, left, right=None):
        return self.layer(left) if right is None else self.layer(left + right)


def get_operations(graph):
    return [node.op for node in graph[0].node]


def test_model_is_traced_with_positional_arguments():
    with torch.no_grad():
        graph = trace_graph(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), (torch.ones(1, 3),), {})
    assert "aten::linear" in get_operations(graph)
    assert "aten::relu" in get_operations(graph)


def test_model_is_traced_with_keyword_arguments():
    with torch.no_grad():
        graph = trace_graph(TwoInputs(), (), {"left": torch.ones(1, 3), "right": torch.ones(1, 3)})
    assert "aten::add" in get_operations(graph)


def test_tracing_with_an_invalid_argument_raises():
    with torch.no_grad(), pytest.raises(RuntimeError):
        trace_graph(nn.Linear(3, 2), (torch.ones(1, 4),), {})
