"""SWA hook: average the weights at the end of the last epochs, with a learning rate and statistics of its own."""

from __future__ import annotations

from itertools import islice
from typing import Any

from torch import Tensor, nn

from hookbus import Needs, Run, Unit, hookimpl
from hookbus.checkpoint import schema
from hookbus.errors import ConfigError, HookError
from hookbus_ema.average import WeightAverage
from hookbus_ema.averaging import AveragingHook
from hookbus_ema.batch_norm import compute_statistics, find_batch_norms, get_statistics, sync_statistics
from hookbus_ema.equal import EqualAverage
from hookbus_ema.model_average import get_unwrapped_model
from hookbus_ema.swa_config import SWAConfig
from hookbus_ema.swa_lr import anneal


class SWAHook(AveragingHook):
    """Average the weights after each of the last epochs (stochastic weight averaging).

    From `swa_epoch_start` on, the hook sets the learning rate of each optimizer step if `swa_lrs` is set, in place of
    the schedulers of the run, and averages the weights at the end of each complete epoch. It then recomputes the
    statistics of BatchNorm layers for the averaged weights, in one pass over the training data. The pass changes
    neither the raw weights and their statistics nor RNG states and the position in the data.
    """

    Config = SWAConfig
    config: SWAConfig
    state_schema = schema.record(
        {
            "steps": schema.integer(),
            "averaged": schema.mapping_of(schema.tensor()),
            "start_epoch": schema.nullable(schema.integer()),
            "initial_lrs": schema.list_of(schema.number()),
        },
        {"begun_at": schema.integer()},
    )

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._start_epoch: int | None = None  # index of the first epoch, once it has begun
        self._initial_lrs: list[float] = []

    @property
    def needs(self) -> Needs:
        """The end of epochs, and an optimizer whose learning rate to set."""
        return Needs(points=("after_train_epoch",), optimizer=self.schedules_learning_rate)

    @property
    def schedules_learning_rate(self) -> bool:  # type: ignore[override]
        """Whether `swa_lrs` is set."""
        return self.config.swa_lrs is not None

    def build_average(self, model: nn.Module) -> WeightAverage:
        """Create the average of a model."""
        return EqualAverage(model, self.config.avg_fn, device=self.config.device)

    def check(self, run: Run) -> None:
        """Check that the run has what the settings require.

        Raises:
            HookError: If there is no model, no optimizer for `swa_lrs`, or no data for statistics of BatchNorm layers.
            ConfigError: If a share has no number of epochs, if `swa_lrs` does not match the parameter groups, or if
                another hook of this class sets the learning rate.
        """
        super().check(run)
        if run.mode != "train":
            return
        if isinstance(self.config.swa_epoch_start, float) and run.max_epochs is None:
            raise ConfigError(
                "swa_epoch_start: a share requires a limit in epochs, got none. Set `epochs`, or set `swa_epoch_start` "
                "to the number of an epoch."
            )
        if self.schedules_learning_rate:
            self._check_learning_rates(run)
        # Another trainer may load its data later.
        if run.host is None:
            self._check_data(run)

    def _check_learning_rates(self, run: Run) -> None:
        if len(run.optimizers) != 1:
            count = len(run.optimizers)
            raise HookError(f"swa_lrs: requires one optimizer, got {count}. Remove `swa_lrs`, or pass one `optimizer`.")
        groups, rates = run.optimizer.param_groups, self.config.swa_lrs
        if isinstance(rates, list) and len(rates) != len(groups):
            raise ConfigError(
                f"swa_lrs: requires one value per parameter group ({len(groups)}), got {len(rates)}. Set a number for "
                "all groups, or a list of this length."
            )
        self.check_unique(
            run,
            "sets the learning rate",
            "Remove `swa_lrs` of one of them.",
            setting="swa_lrs",
            get_value=lambda hook: hook.schedules_learning_rate,
        )

    def _check_data(self, run: Run) -> None:
        if not find_batch_norms(get_unwrapped_model(run)):
            return
        purpose = "to recompute the statistics of BatchNorm layers"
        if run.train_loader is None:
            raise HookError(
                f"requires the training loader of the run {purpose}, got None. Pass `train_loader` to the run."
            )
        if obstacle := run.trial_obstacle:
            raise HookError(
                f"requires a training loader that can be read twice at a time {purpose}, got {obstacle}. Pass a loader "
                "that is no iterator, saves no position, and has no persistent workers of an iterable dataset."
            )

    def get_milestones(self, run: Run) -> dict[str, tuple[int, Unit]]:
        """Return the first epoch of the average."""
        start = self.config.swa_epoch_start
        return {"swa_epoch_start": (start, "epoch")} if isinstance(start, int) else {}

    def before_run(self, run: Run) -> None:
        """Register as a provider of averaged weights. A run that starts at iteration 0 discards an old average."""
        if run.iters_done == 0:
            self._start_epoch, self._initial_lrs = None, []
        super().before_run(run)

    def before_train(self, run: Run) -> None:
        """Check the data that another trainer has loaded."""
        self._check_data(run)

    @hookimpl(frequency=False)
    def before_optimizer_step(self, run: Run) -> None:
        """Set the learning rates of the step."""
        # Here and not at the start of the epoch: whatever schedulers have set since is replaced.
        if self.schedules_learning_rate and self._is_active(run):
            self._set_learning_rates(run)

    @hookimpl(frequency=False)
    def after_train_epoch(self, run: Run) -> None:
        """Update the average and the statistics of its BatchNorm layers, unless the epoch was truncated."""
        if not run.epoch_complete or not self._is_active(run):
            return
        self._begin(run)
        average = self._sync_with_model() or self._track(self.build_average(get_unwrapped_model(run)))
        average.update()
        self._update_statistics(run, average)

    def after_train(self, run: Run) -> None:
        """Report a custom loop that omits the end of its epochs."""
        if self.average is None and run.epochs_done >= self._get_first_epoch(run):
            run.logger.warning(
                "%s: no average, because the loop has emitted no after_train_epoch. Emit before_train_epoch and "
                "after_train_epoch in each epoch.",
                self.name,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the averages, their number, the first epoch, and the learning rates at its beginning."""
        state = super().state_dict()
        return {**state, "start_epoch": self._start_epoch, "initial_lrs": list(self._initial_lrs)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        super().load_state_dict(state)
        self._start_epoch, self._initial_lrs = state["start_epoch"], list(state["initial_lrs"])

    # -- helpers ---------------------------------------------------------------------------------

    def _is_active(self, run: Run) -> bool:
        """Whether the current epoch is one of the average. An average that has begun continues in a longer run."""
        return self._start_epoch is not None or run.epoch + 1 >= self._get_first_epoch(run)

    def _get_first_epoch(self, run: Run) -> int:
        """Return the number of the first epoch of the average, from 1."""
        start = self.config.swa_epoch_start
        if isinstance(start, float):
            assert run.max_epochs is not None  # a precondition
            start = int(round(run.max_epochs * start, 6))  # 0.58 * 50 is 28.999999999999996
        return max(start, 1)

    def _begin(self, run: Run) -> None:
        """Record the beginning of the first epoch, at the first call."""
        if self._start_epoch is None:
            self._start_epoch = run.epoch
            if self.schedules_learning_rate:
                self._initial_lrs = [float(group["lr"]) for group in run.optimizer.param_groups]

    def _set_learning_rates(self, run: Run) -> None:
        self._begin(run)
        assert self._start_epoch is not None
        config, groups = self.config, run.optimizer.param_groups
        finals = config.swa_lrs if isinstance(config.swa_lrs, list) else [config.swa_lrs] * len(groups)
        for group, initial, final in zip(groups, self._initial_lrs, finals, strict=False):
            assert final is not None
            rate = anneal(
                run.epoch - self._start_epoch,
                initial=initial,
                final=final,
                annealing_epochs=config.annealing_epochs,
                strategy=config.annealing_strategy,
            )
            # In place: compiled and capturable optimizers reference the tensor.
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _update_statistics(self, run: Run, average: WeightAverage) -> None:
        """Recompute the statistics of the BatchNorm layers for the averaged weights."""
        model = get_unwrapped_model(run)
        if not (layers := find_batch_norms(model)):
            return
        run.weights.wait_for_readers()
        with run.sandbox() as trial, average.applied():
            # The epoch of an endless loader has the length that the loop gives it.
            compute_statistics(model, layers, islice(trial.batches(), run.epoch_length), trial.eval_step)
            sync_statistics(layers, run.ranks)
            average.keep(get_statistics(layers))
