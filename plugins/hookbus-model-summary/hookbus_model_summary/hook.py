"""The hook that prints the summary of a model once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from rich.console import Console, ConsoleDimensions
from torch import nn

from hookbus import Hook, Needs, Priority, Run, hookimpl, once
from hookbus.distributed import has_sharded_tensors, unwrap_model
from hookbus.errors import ConfigError
from hookbus.evaluation import call_model, copy_tensors, isolated_forward
from hookbus_model_summary.config import ModelSummaryConfig
from hookbus_model_summary.parameters import has_uninitialized
from hookbus_model_summary.summary import ModelSummary, summarize
from hookbus_model_summary.table import print_summary, to_dict

PIPED_WIDTH = 160


class ModelSummaryHook(Hook):
    """Print a table of the modules of the model before the first iteration: parameters, shapes and FLOPs.

    Shapes and FLOPs are those of a forward pass of the first batch in evaluation mode, which changes neither buffers
    nor gradients nor RNG states. A run that resumes prints nothing.
    """

    Config = ModelSummaryConfig
    priority = Priority.LOW
    observer = True
    ranks = "main"
    needs = Needs(modules=True)
    config: ModelSummaryConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._is_printed = False

    def check(self, run: Run) -> None:
        """Check that the run has a model.

        Raises:
            ConfigError: If a training has none.
        """
        if run.mode == "train" and run.model is None:
            raise ConfigError(["requires a model, got None. Pass `model=` to bus.run."])

    def before_train(self) -> None:
        """Reset the hook, which may have been used by an earlier run."""
        self._is_printed = False

    @hookimpl(when=once(1), frequency=False)
    def before_train_iter(self, run: Run, batch: Any) -> None:
        """Print the summary, with the shapes of the batch."""
        self._print(run, batch)

    @hookimpl(when=once(1), frequency=False)
    def after_train_iter(self, run: Run, batch: Any) -> None:
        """Print the summary in a loop that emits no `before_train_iter`."""
        self._print(run, batch)

    def summarize(self, run: Run, batch: Any = None) -> ModelSummary:
        """Return the summary of the model of a run.

        Args:
            run: The run, with a model.
            batch: Batch on the device of the model, which is not modified. Default: None, for parameters only.
        """
        assert run.model is not None
        forward, note = self._find_forward(run, batch)
        model = unwrap_model(run.model)
        with ExitStack() as stack:
            # The loss function is called with the outputs of the model, and may be a module with buffers.
            for module in (run.model, run.loss) if forward is not None and not has_uninitialized(model) else ():
                if isinstance(module, nn.Module):
                    stack.enter_context(isolated_forward(module))
            return summarize(model, forward, max_depth=self.config.max_depth, note=note)

    def print_summary(self, run: Run, batch: Any = None, console: Console | None = None) -> None:
        """Print the summary of the model of a run.

        Args:
            run: The run, with a model.
            batch: Batch on the device of the model. Default: None, for parameters only.
            console: Console to print on. Default: the console of the run, else standard output.
        """
        print_summary(self.summarize(run, batch), console or _get_console(run))

    def to_dict(self, run: Run, batch: Any = None) -> Mapping[str, Any]:
        """Return the summary of the model of a run as built-in Python types.

        Args:
            run: The run, with a model.
            batch: Batch on the device of the model. Default: None, for parameters only.
        """
        return to_dict(self.summarize(run, batch))

    def _print(self, run: Run, batch: Any) -> None:
        if not self._is_printed and self.config.max_depth:
            self._is_printed = True
            self.print_summary(run, batch)

    def _find_forward(self, run: Run, batch: Any) -> tuple[Callable[[], object] | None, str]:
        """Return the function that calls the model with a batch, or None and the reason."""
        model = run.model
        assert model is not None
        if batch is None:
            return None, "the loop passes no batch"
        if has_sharded_tensors(model):
            return None, "a forward pass of sharded parameters requires all ranks"
        copies = copy_tensors(batch)  # some models modify their inputs in place
        if run.trainer is not None:
            return lambda: run.eval_step(copies), ""
        return lambda: call_model(unwrap_model(model), _get_inputs(copies)), ""


def _get_inputs(batch: Any) -> Any:
    """Return the inputs of the model in a custom loop: all elements of a batch but the last one, the targets."""
    if isinstance(batch, Mapping):
        return dict(batch)
    if isinstance(batch, (list, tuple)):
        return tuple(batch[:-1]) if len(batch) > 1 else tuple(batch)
    return batch


def _get_console(run: Run) -> Console:
    """Return the console of the run; one of standard output if there is none."""
    console: Console | None = run.get("console")
    if console is None:
        console = Console(highlight=False, force_jupyter=False)  # plain text in a notebook
        if not console.is_terminal:
            console.size = ConsoleDimensions(PIPED_WIDTH, console.height)
    return console
