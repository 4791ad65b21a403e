"""The TensorBoard hook: what is written besides what every back end gets."""

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
    """Writes event files for TensorBoard, which a resumed run goes on with.

    Besides what every back end gets: the configuration and a summary of the model as texts, hparams with the final
    results, and on request the graph, the pictures that go into the model, and distributions of weights and gradients.
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
        """See that there is a directory.

        Raises:
            HookError: there is none.
        """
        from hookbus_tensorboard.writer import TensorBoardWriter

        return partial(TensorBoardWriter, self.directory(run, self.config.log_dir))

    def owns_place(self) -> bool:
        """A directory of the user's own may hold another run."""
        return self.config.log_dir is None

    # -- texts and hparams -----------------------------------------------------------------------

    def before_train(self, run: Run) -> None:
        """Write the configuration, and what the model consists of."""
        super().before_train(run)
        if self._settings:
            self.log_text(run, "config", config_text(self._settings), run.steps_done)
        if run.model is not None:
            self.log_text(run, "model", model_text(run.model), run.steps_done)

    def put_config(self, config: Mapping[str, Any]) -> None:
        """Keep the configuration: it becomes a text when training begins, and hparams when it ends."""
        self._settings = config

    def after_run(self, run: Run) -> None:
        """Write the hparams, with the final results."""
        if run.mode == "train" and self._settings:
            config, results, step = self._settings, dict(run.metrics.results), run.steps_done
            self.put("hparams", lambda writer: writer.write_hparams(config, results, step))
        super().after_run(run)

    # -- on request ----------------------------------------------------------------------------

    def before_train_iter(self, run: Run, batch: Any, model: nn.Module) -> None:  # type: ignore[override]
        """Trace the model with the first batch, and record pictures that are about to go into it."""
        super().before_train_iter(run)
        if self._to_trace:
            self._to_trace = False
            self._trace(model, batch)
        if self.config.log_images and self.every_n_iters(run, self.config.image_interval):
            self._record_inputs(run, batch)

    @hookimpl(
        when=lambda config: every(config.histogram_interval if config.log_weights or config.log_gradients else None)
    )
    def before_optimizer_step(self, run: Run) -> None:
        """Record distributions of the weights, and of the gradients that are about to change them."""
        if self._is_spread(run.model, "log_weights and log_gradients"):
            return
        for name, weight in run.model.named_parameters() if run.model is not None else ():
            if self.config.log_weights:
                self.log_histograms(run, f"weights/{name}", thinned(weight), run.steps_done)
            if self.config.log_gradients and weight.grad is not None:
                self.log_histograms(run, f"gradients/{name}", thinned(weight.grad), run.steps_done)

    def _record_inputs(self, run: Run, batch: Any) -> None:
        pictures = pictures_in(batch, self.config.max_images)
        if not pictures:
            self.note("log_images: the batch holds no pictures of shape (N, C, H, W) or (N, H, W, C)")
        for number, picture in enumerate(pictures):
            self.log_images(run, f"input/{number}", picture, run.steps_done, None)

    def _is_spread(self, model: nn.Module | None, what: str) -> bool:
        """Whether each process has a part of the weights: then the main one alone can do nothing with them."""
        if layout_of(model) is None:
            return False
        self.note(f"{what}: the weights are spread over several processes, and this one has only a part of them")
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
