"""The Trainer's own validation and test.

They leave no trace: module modes, gradient mode and random streams are as before afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from hookbus.errors import LoopError, MetricError
from hookbus.metrics import is_scalar, to_float
from hookbus.training.batches import move
from hookbus.training.eval_shard import share_of
from hookbus.training.rng import preserved_rng
from hookbus.training.scores import Score, combine, targets_in
from hookbus.training.workers import read

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["begin_scores", "evaluating", "judge", "named_loaders", "preserved_modes", "results_of", "update_scores"]


@contextmanager
def evaluating(model: nn.Module | None) -> Iterator[None]:
    """The model in evaluation mode, without gradients; every module's own mode comes back afterwards.

    Args:
        model: what is evaluated; None where the loop has none.
    """
    with preserved_rng(), torch.no_grad(), nullcontext() if model is None else preserved_modes(model):
        if model is not None:
            model.eval()
        yield


@contextmanager
def preserved_modes(model: nn.Module) -> Iterator[None]:
    """What is changed inside of the modes of the modules, training or evaluation, comes back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def judge(
    run: Run, kind: Literal["val", "test"], loaders: Any, scores: Mapping[str, Score], device: torch.device
) -> None:
    """Judge the model on each loader, and emit the events of it.

    Several processes judge each batch once, together: each has its share of them. A loader that gives no batch is one
    that gives none to any of them.

    Args:
        run: the run.
        kind: what the events and results are called.
        loaders: a loader, or a mapping of name to loader.
        scores: what is measured besides what the model returns.
        device: where the model is.

    Raises:
        LoopError: there is no loader, one gives no batch, or a score cannot be measured.
    """
    if not (named := named_loaders(loaders)):
        raise LoopError(f"The {kind}_loader is an empty mapping, so nothing was measured.")
    if run.trainer is not None:
        run.trainer.steps.begin_judging(run.ranks)
    for name, loader in named:
        run.bus.fire(f"before_{kind}_epoch", dataloader_name=name)
        _judge_loader(run, kind, name, loader, scores, device)
        results = _results_of_all(run, scores)
        for score in scores.values():
            score.reset()
        run.bus.fire(f"after_{kind}_epoch", metrics=results, dataloader_name=name)


def named_loaders(loaders: Any) -> list[tuple[str | None, Iterable[Any]]]:
    """(name, loader) of each; the name is None where there is only one."""
    return list(loaders.items()) if isinstance(loaders, Mapping) else [(None, loaders)]


def begin_scores(scores: Mapping[str, Score], device: torch.device) -> None:
    """Let scores begin again, where the model is: torchmetrics objects keep their sums on a device of their own."""
    for score in scores.values():
        if hasattr(score, "to"):
            score.to(device)
        score.reset()


def results_of(scores: Mapping[str, Score]) -> dict[str, Any]:
    """What scores have found; one that gives a mapping has several results."""
    return {found: value for score in scores.items() for found, value in _results(*score)}


def _results_of_all(run: Run, scores: Mapping[str, Score]) -> dict[str, Any]:
    """What scores have found on all processes; computed by the main one, which has judged a batch for certain."""
    ranks = run.ranks
    if ranks.world_size == 1:
        return results_of(scores)
    combine(scores, ranks)
    found = {name: to_float(value) for name, value in results_of(scores).items()} if ranks.is_main else {}
    return ranks.broadcast("results of the metrics", found)


def update_scores(scores: Mapping[str, Score], batch: Any, outputs: Any) -> None:
    """Measure one batch.

    Raises:
        LoopError: the outputs or the targets are not where they are looked for.
    """
    output = outputs.get("output", outputs.get("logits")) if isinstance(outputs, Mapping) else outputs
    targets = targets_in(batch)
    if output is None or targets is None:
        raise LoopError(
            f"The metrics {', '.join(scores)} need the model's output and the targets. Batches are (inputs, targets) "
            "or mappings with 'targets' or 'labels'; a model that returns a mapping names its output 'output' or "
            "'logits'."
        )
    for score in scores.values():
        score.update(output, targets)


def _share_of(run: Run, loader: Iterable[Any]) -> Iterable[Any]:
    """What this process judges: all, where it is the only one or its Trainer leaves loaders to the user."""
    ranks = run.ranks
    if ranks.world_size == 1 or (run.trainer is not None and run.trainer.part is None):
        return loader
    make = partial(share_of, loader, ranks.rank, ranks.world_size, run.seed)
    share: Iterable[Any] | None = run.validations.kept(loader, make)
    if share is None:
        run.validations.tell_once(
            "The %s to be judged is read as it is by each of the %s processes: see that it gives each of them a part "
            "of its own, or samples count more than once.",
            type(loader).__name__,
            ranks.world_size,
        )
    return loader if share is None else share


def _judge_loader(
    run: Run, kind: str, name: str | None, loader: Iterable[Any], scores: Mapping[str, Score], device: torch.device
) -> None:
    fire, step, batch_idx = run.bus.fire, run.bus.calls.get(f"{kind}_step"), -1
    begin_scores(scores, device)
    for batch_idx, batch in enumerate(read(_share_of(run, loader))):
        if device.type != "cpu":
            batch = move(batch, device)
        fire(f"before_{kind}_iter", batch_idx=batch_idx, batch=batch, dataloader_name=name)
        outputs = step(run, batch)
        if scores:
            update_scores(scores, batch, outputs)
        fire(f"after_{kind}_iter", batch_idx=batch_idx, batch=batch, outputs=outputs, dataloader_name=name)
    if not sum(run.ranks.gather("batches judged", batch_idx + 1)):
        which = f" {name!r}" if name else ""
        raise LoopError(
            f"The {kind}_loader{which} gave no batch, so nothing was measured. An iterator can be read only once: give "
            "a loader with at least one batch (drop_last may have left none)."
        )


def _results(name: str, score: Score) -> list[tuple[str, Any]]:
    found = score.compute()
    named = found if isinstance(found, Mapping) else {name: found}
    for each, value in named.items():
        if not is_scalar(value):
            shape = getattr(value, "shape", None)
            what = type(value).__name__ if shape is None else f"{type(value).__name__} of shape {tuple(shape)}"
            raise MetricError(
                f"The metric {each!r} gives a {what}, and a result is a single number. Let it average, or return a "
                "mapping of a name for each number."
            )
    return list(named.items())
