from torch import nn

from hookbus_tensorboard.summary import config_text, model_text


def test_model_summary_is_a_table_of_child_modules_and_the_structure():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    assert model_text(model).splitlines() == [
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
    assert "| Linear | 1,100 | 1,100 |" in model_text(nn.Linear(10, 100)).splitlines()[2]


def test_configuration_is_an_indented_code_block():
    assert config_text({"lr": 0.5, "größe": {"a": [1]}}).splitlines() == [
        "    {",
        '      "lr": 0.5,',
        '      "größe": {',
        '        "a": [',
        "          1",
        "        ]",
        "      }",
        "    }",
    ]
