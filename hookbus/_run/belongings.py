"""What a hook has registered with a run, which leaves with the hook when it is unregistered or disabled."""

from __future__ import annotations

from hookbus._run.run_view import RunView


def release_belongings(run: RunView, name: str, plugin: object) -> None:
    """Remove what a hook has registered with a run, when it was unregistered or disabled.

    These are services, contexts around validations, averaged weights, functions that modify the training data, windows
    of logged values, and pending requests. The bus removes other hooks, points and PyTorch hooks.

    Args:
        run: The run.
        name: Name of the hook.
        plugin: The hook.
    """
    owners = [run.services, run.validations.contexts, run.weights, run.training_data, run.metrics]
    if run.trainer is not None:
        owners.append(run.trainer.runs)
    for owner in owners:
        owner.release(name)
    _drop_requests(run, name, plugin)


def _drop_requests(run: RunView, name: str, plugin: object) -> None:
    """Drop the pending requests of a hook and the saves that it would write, with a warning."""
    run.records = {key: record for key, record in run.records.items() if key[0] != name}
    for request in list(run.queue.waiting):
        if request.requested_by == name or request.details.get("saver") is plugin:
            run.queue.waiting.remove(request)
            run.logger.warning(
                "%s left the run before a request was processed: %s, requested by %s",
                name,
                request.kind.value,
                request,
            )
