from torch import nn

from hookbus_tensorboard.inputs import format_config, format_model


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
