"""Tests of notebooks in a real kernel: the example notebook, live tables, interrupts, and repeated cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.notebooks import EXAMPLE, execute

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SETUP = """
import os, signal, torch
from hookbus import HOOKS, Hook, Trainer, build_hook

def build(epochs, iterations, *hooks):
    model = torch.nn.Linear(1, 1)
    batch = torch.ones(1, 1), torch.ones(1, 1)
    return Trainer(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss_fn=torch.nn.functional.mse_loss,
        train_loader=[batch] * iterations,
        val_loader=[batch],
        hooks=hooks,
        epochs=epochs,
        work_dir=None,
    )
"""
SHORT = "short = build(2, 2).fit()"
LONG = "long = build(200, 20).fit()"
INTERRUPTED = """
class Interrupt(Hook):
    def after_train_iter(self, run):
        if run.iters_done == 3:
            os.kill(os.getpid(), signal.SIGINT)

trainer = build(2, 2, Interrupt())
trainer.fit()
"""
FAILED = """
class Fail(Hook):
    def after_train_iter(self):
        raise ValueError("<b>no</b>")

build(1, 2, Fail()).fit()
"""
CONTINUED = "trainer.fit()"
REDEFINED = """
@HOOKS.register()
class Announce(Hook):
    def after_train(self):
        print("version", VERSION)

announced = build(1, 2, build_hook({"type": "Announce"})).fit()
"""
CELLS = {
    "setup": SETUP,
    "short": SHORT,
    "short again": SHORT,
    "long": LONG,
    "interrupted": INTERRUPTED,
    "continued": CONTINUED,
    "failed": FAILED,
    "redefined": REDEFINED.replace("VERSION", "1"),
    "redefined again": REDEFINED.replace("VERSION", "2"),
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Return the outputs of each cell, and those of the example notebook as "example 0" and so on."""
    example = nbformat.read(EXAMPLE, as_version=4)
    code = [cell for cell in example.cells if cell.cell_type == "code"]
    names = [*CELLS, *(f"example {index}" for index in range(len(code)))]
    new = [nbformat.v4.new_code_cell(source) for source in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=[*new, *code])
    execute(notebook, tmp_path_factory.mktemp("notebook"))
    return {name: cell.outputs for name, cell in zip(names, notebook.cells, strict=True)}


def get_kinds(cell: list[Any]) -> list[str]:
    """Return the types of the outputs, without log messages."""
    return [output.output_type for output in cell if output.output_type != "stream"]


def get_html(output: Any) -> str:
    return "".join(output.data["text/html"])


def test_a_training_is_one_output_with_a_row_per_epoch(outputs: dict[str, list[Any]]) -> None:
    (output,) = outputs["short"]

    html = get_html(output)
    assert get_kinds(outputs["short"]) == ["display_data"]
    assert html.count("<tr>") == 3
    assert "<th>epoch</th><th>train/loss</th><th>val/loss</th>" in html
    assert "finished" in html
    assert "border-radius" not in html, "the bar is removed at the end"
    assert "2/2" in output.data["text/plain"]


def test_a_cell_that_is_executed_again_has_the_same_output(outputs: dict[str, list[Any]]) -> None:
    assert get_kinds(outputs["short again"]) == ["display_data"]
    assert get_html(outputs["short again"][0]).count("<tr>") == 3


def test_the_size_of_a_notebook_is_independent_of_the_length_of_a_training(outputs: dict[str, list[Any]]) -> None:
    (output,) = outputs["long"]

    assert "200/200" in get_html(output)
    assert get_html(output).count("<tr>") == 51
    assert len(json.dumps(output)) < 40_000


def test_an_interrupted_cell_shows_its_final_state_and_continues(outputs: dict[str, list[Any]]) -> None:
    display, *_, error = outputs["interrupted"]

    assert "interrupted" in get_html(display)
    assert "border-radius" not in get_html(display)
    assert error.ename == "KeyboardInterrupt"
    assert "finished" in get_html(outputs["continued"][0])
    assert get_kinds(outputs["continued"]) == ["display_data", "execute_result"]


def test_a_failed_cell_shows_its_error(outputs: dict[str, list[Any]]) -> None:
    display = next(output for output in outputs["failed"] if output.output_type == "display_data")

    assert "failed" in get_html(display)
    assert "&lt;b&gt;no" in get_html(display)
    assert outputs["failed"][-1].ename == "ValueError"


def test_a_class_that_is_defined_again_replaces_the_first_one(outputs: dict[str, list[Any]]) -> None:
    assert [o.text for o in outputs["redefined"] if o.output_type == "stream"] == ["version 1\n"]
    assert [o.text for o in outputs["redefined again"] if o.output_type == "stream"] == ["version 2\n"]


def test_the_result_is_displayed_with_curves(outputs: dict[str, list[Any]]) -> None:
    result = outputs["continued"][-1]

    assert "<svg" in get_html(result)
    assert result.data["text/plain"].startswith("Run(train, finished, epoch 2/2, iteration ")


def test_the_example_notebook_contains_the_outputs_that_it_produces(outputs: dict[str, list[Any]]) -> None:
    example = nbformat.read(EXAMPLE, as_version=4)
    stored = [cell.outputs for cell in example.cells if cell.cell_type == "code"]
    produced = [outputs[f"example {index}"] for index in range(len(stored))]

    assert [get_kinds(cell) for cell in stored] == [get_kinds(cell) for cell in produced]
    assert not [output for cell in [*stored, *produced] for output in cell if output.output_type in ("error", "stream")]
    assert len(Path(EXAMPLE).read_bytes()) < 60_000
