import pytest
import torch
from torch import nn

from hookbus_tensorboard.graph import graph_of


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, left, right=None):
        return self.layer(left) if right is None else self.layer(left + right)


def operations(graph):
    return [node.op for node in graph[0].node]


def test_a_model_is_traced_with_what_it_is_called_with():
    with torch.no_grad():
        graph = graph_of(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), (torch.ones(1, 3),), {})
    assert "aten::linear" in operations(graph)
    assert "aten::relu" in operations(graph)


def test_arguments_may_be_named():
    with torch.no_grad():
        graph = graph_of(Named(), (), {"left": torch.ones(1, 3), "right": torch.ones(1, 3)})
    assert "aten::add" in operations(graph)


def test_a_model_that_cannot_be_traced_is_an_error():
    with torch.no_grad(), pytest.raises(RuntimeError):
        graph_of(nn.Linear(3, 2), (torch.ones(1, 4),), {})
