"""The TensorBoard hook and the data that it logs in addition to a `WriterHook`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from hookbus import Run, Writer, WriterHook, every, hookimpl
from hookbus.errors import in_one_line
from hookbus.model.layouts import layout_of
from hookbus.training.evaluation import evaluating
from hookbus_tensorboard.config import TensorBoardConfig
from hookbus_tensorboard.graph import graph_of
from hookbus_tensorboard.inputs import arguments_of, pictures_in, thinned
from hookbus_tensorboard.summary import config_text, model_text

__all__ = ["TensorBoardHook"]


class TensorBoardHook(WriterHook):
    """Write TensorBoard event files; a resumed run continues them.

    In addition to the records of every `WriterHook`, the configuration and a summary of the model are logged as text,
    and the final results as hparams. The model graph, the input images and histograms of weights and gradients are
    optional.
    """

    Config = TensorBoardConfig
    library = "torch.utils.tensorboard"
    install = "tensorboard"
    config: TensorBoardConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._settings: Mapping[str, Any] = {}
        self._to_trace = self.config.log_graph

    def writer_factory(self, run: Run) -> Callable[[], Writer]:
        """Return a factory of writers for the directory of this run.

        Raises:
            HookError: If neither `log_dir` nor a work directory is set.
        """
        from hookbus_tensorboard.writer import TensorBoardWriter

        return partial(TensorBoardWriter, self.directory(run, self.config.log_dir))

    def owns_place(self) -> bool:
        """Return whether later steps may be removed; no for `log_dir`, which can contain the events of other runs."""
        return self.config.log_dir is None

    # -- text and hparams ------------------------------------------------------------------------

    def before_train(self, run: Run) -> None:
        """Start writing; log the configuration and a summary of the model as text."""
        super().before_train(run)
        if self._settings:
            self.log_text(run, "config", config_text(self._settings), run.steps_done)
        if run.model is not None:
            self.log_text(run, "model", model_text(run.model), run.steps_done)

    def put_config(self, config: Mapping[str, Any]) -> None:
        """Store the configuration, which is logged as text when training starts and as hparams when the run ends."""
        self._settings = config

    def after_run(self, run: Run) -> None:
        """Log the hparams with the final results of a training."""
        if run.mode == "train" and self._settings:
            # Copied here, because the writer's thread runs the lambda after the run may have changed its metrics.
            config, results, step = self._settings, dict(run.metrics.results), run.steps_done
            self.put("hparams", lambda writer: writer.write_hparams(config, results, step))
        super().after_run(run)

    # -- optional records ------------------------------------------------------------------------

    def before_train_iter(self, run: Run, batch: Any, model: nn.Module) -> None:  # type: ignore[override]
        """Trace the model with the first batch, and log the input images of a due iteration."""
        super().before_train_iter(run)
        if self._to_trace:
            self._to_trace = False  # one attempt per hook: a failed trace would fail again with every batch
            self._trace(model, batch)
        if self.config.log_images and self.every_n_iters(run, self.config.image_interval):
            self._record_inputs(run, batch)

    @hookimpl(
        when=lambda config: every(config.histogram_interval if config.log_weights or config.log_gradients else None)
    )
    def before_optimizer_step(self, run: Run) -> None:
        """Log histograms of the weights before the optimizer step, and of the gradients of this step."""
        if self._is_spread(run.model, "log_weights and log_gradients"):
            return
        for name, weight in run.model.named_parameters() if run.model is not None else ():
            if self.config.log_weights:
                self.log_histograms(run, f"weights/{name}", thinned(weight), run.steps_done)
            if self.config.log_gradients and weight.grad is not None:
                self.log_histograms(run, f"gradients/{name}", thinned(weight.grad), run.steps_done)

    def _record_inputs(self, run: Run, batch: Any) -> None:
        images = pictures_in(batch, self.config.max_images)
        if not images:
            self.note("log_images: the batch contains no images of shape (N, C, H, W) or (N, H, W, C)")
        for i, image in enumerate(images):
            self.log_images(run, f"input/{i}", image, run.steps_done, None)

    def _is_spread(self, model: nn.Module | None, setting: str) -> bool:
        """Return whether the parameters are sharded across ranks, and warn that `setting` has no effect then."""
        # This hook runs on rank 0 only. Full tensors and a forward pass require collectives, which would deadlock.
        if layout_of(model) is None:
            return False
        self.note(f"{setting}: not supported for parameters that are sharded across ranks")
        return True

    def _trace(self, model: nn.Module, batch: Any) -> None:
        if self._is_spread(model, "log_graph"):
            return
        try:
            with evaluating(model):
                graph = graph_of(model, *arguments_of(batch))
        except Exception as error:
            self.note(f"log_graph: the model cannot be traced with the first batch: {in_one_line(error)}")
        else:
            self.put("graphs", lambda writer: writer.write_graph(graph))
