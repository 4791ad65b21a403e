import pytest
import torch
from torch import nn

from hookbus_tensorboard.inputs import (
    find_images,
    format_config,
    format_model,
    get_model_arguments,
    subsample,
    trace_graph,
)


def test_model_arguments_exclude_the_targets():
    assert get_model_arguments(("a", "b", "targets")) == (("a", "b"), {})
    assert get_model_arguments(["a"]) == (("a",), {})
    assert get_model_arguments("a") == (("a",), {})
    assert get_model_arguments({"x": 1}) == ((), {"x": 1})


def test_values_outside_0_to_1_are_rescaled():
    (image,) = find_images(torch.tensor([-1.0, 0.0, 3.0, 1.0]).reshape(1, 1, 2, 2), 8)
    assert image.flatten().tolist() == [0.0, 0.25, 1.0, 0.5]


def test_first_images_of_the_first_image_tensor_are_returned():
    batch = {"ids": torch.zeros(5), "image": torch.ones(5, 3, 4, 4), "mask": torch.zeros(5, 1, 4, 4)}
    assert [tuple(image.shape) for image in find_images(batch, 2)] == [(3, 4, 4)] * 2
    assert find_images([torch.zeros(2, 5, 6, 7)], 2) == []


def test_large_tensor_is_subsampled_evenly():
    assert subsample(torch.arange(65536.0)).tolist() == list(range(65536))
    assert subsample(torch.arange(65537.0)).tolist() == list(range(0, 65537, 2))
    assert subsample(torch.zeros(0)).numel() == 0


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


def test_model_summary_is_a_table_of_child_modules_and_the_structure():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    assert format_model(model).splitlines() == [
        "| module | type | parameters | trainable |",
        "|---|---|---:|---:|",
        "|  | Sequential | 26 | 22 |",  # 3 * 4 + 4 and 4 * 2 + 2
        "| 0 | Linear | 16 | 12 |",
        "| 1 | ReLU | 0 | 0 |",
        "| 2 | Linear | 10 | 10 |",
        "",
        *(f"    {line}" for line in str(model).splitlines()),
    ]


def test_counts_have_thousands_separators():
    assert "| Linear | 1,100 | 1,100 |" in format_model(nn.Linear(10, 100)).splitlines()[2]


def test_configuration_is_an_indented_code_block():
    assert format_config({"lr": 0.5, "größe": {"a": [1]}}).splitlines() == [
        "    {",
        '      "lr": 0.5,',
        '      "größe": {',
        '        "a": [',
        "          1",
        "        ]",
        "      }",
        "    }",
    ]
