"""Bridge to loops with Fabric."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar

from hookbus.bridge import LoopBridge
from hookbus.errors import ConfigError
from hookbus_lightning.capabilities import FABRIC

if TYPE_CHECKING:
    from hookbus import Run


class FabricBridge(LoopBridge):
    """Runs of a loop with a `lightning.Fabric`, which is the loop of the user.

    It can be an entry of the state of `fabric.save` and `fabric.load`.

    Args:
        bus, host, checkpoints, metric_prefix: See `hookbus.bridge.Bridge`.
        options: Arguments of `bus.run` for all runs, such as `model`, `optimizer` and `work_dir`.
    """

    capabilities: ClassVar = FABRIC

    def attach(self) -> None:
        """Wrap `backward` and `save` of Fabric."""
        self.replace(self.host, "backward", self._wrap_backward)
        self.replace(self.host, "save", self._wrap_save)

    @contextmanager
    def train(self, **arguments: Any) -> Iterator[Run]:
        """Execute the loop in the `with` block as a run. Events and arguments are those of `bus.run`.

        Args:
            arguments: Arguments of `bus.run` in addition to the options of the bridge, such as `epochs` and `validate`.

        Yields:
            The run.

        Raises:
            ConfigError: If an argument is invalid or was passed to `bus.attach` as well, an optimizer was not set up by
                Fabric, or a hook schedules validations without a validation function.
            HookbusError: If a precondition of a hook is not met.
        """
        if repeated := sorted(arguments.keys() & self._options.keys()):
            raise ConfigError([f"bridge.train: got {', '.join(repeated)}, as did bus.attach. Pass it once."])
        scaler = getattr(self.host.strategy.precision, "scaler", None)
        options = self.get_run_arguments({"device": self.host.device, "scaler": scaler, **arguments})
        if options.get("validate") is None:
            self.check_validations()
        attached, self._replaced = self._replaced, ExitStack()  # the steps are replaced during the run only
        try:
            self._replace_steps(options.get("optimizer"))
            with self.bus.run(**options) as run:
                self.begin(run)
                yield run
        finally:
            self._replaced.close()
            self._replaced = attached

    def _replace_steps(self, optimizer: Any) -> None:
        self._backwards, self._is_skipped = 0, False
        (package,) = {cls.__module__ for cls in type(self.host).__mro__ if cls.__name__ == "Fabric"}
        is_wrapped = import_module(f"{package.removesuffix('.fabric')}.wrappers").is_wrapped
        for part in optimizer.values() if isinstance(optimizer, Mapping) else [optimizer]:
            if part is not None and not is_wrapped(part):
                raise ConfigError(
                    [
                        f"optimizer: should be the result of fabric.setup, got {type(part).__name__}. Pass the "
                        "optimizer that Fabric has set up."
                    ]
                )
            if part is not None:
                self.replace(part, "step", self._wrap_step)

    # -- methods of Fabric -----------------------------------------------------------------------

    def _wrap_backward(self, original: Callable[..., None]) -> Callable[..., None]:
        def backward(tensor: Any, *args: Any, **kwargs: Any) -> None:
            if not self.is_open:
                original(tensor, *args, **kwargs)
                return
            run = self.active_run
            if not run.should_skip_iter:
                self.bus.emit("after_forward", loss=tensor)
            self._is_skipped = run.should_skip_iter
            if not self._is_skipped:
                loss = run.resolve_loss(tensor)
                original(loss, *args, **kwargs)
                self._backwards += 1
                self.bus.emit("after_backward", loss=loss)

        return backward

    def _wrap_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(_: Any, closure: Callable[[], Any] | None = None) -> Any:
            if closure is not None:
                return original(closure)
            # Gradients of the micro-batches before the skipped one are used.
            if self._is_skipped and not self._backwards:
                return None
            self._backwards = 0
            return original()

        # Schedulers of torch that are created during the run require a method.
        return MethodType(step, original.__self__)  # type: ignore[attr-defined]

    def _wrap_save(self, original: Callable[..., None]) -> Callable[..., None]:
        def save(path: Any, *args: Any, **kwargs: Any) -> None:
            with self.omit_refused_save():
                original(path, *args, **kwargs)
                self.report_save(path)

        return save
