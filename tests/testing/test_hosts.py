"""Tests of the task that is trained in other trainers."""

from __future__ import annotations

import pytest
import torch

from hookbus.testing import HostTask, TaskError, fingerprint


def train(task: HostTask, epochs: int) -> torch.nn.Module:
    """Train a task in a plain loop."""
    torch.manual_seed(task.seed)
    model = task.model().train()
    optimizer = task.optimizer(model)
    loader = task.train_loader()
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            task.loss(model(inputs), targets).backward()
            optimizer.step()
    return model


def test_two_trainings_of_a_task_are_equal() -> None:
    first, second = (train(HostTask(), 2) for _ in range(2))
    assert fingerprint(first.state_dict()) == fingerprint(second.state_dict())
    assert fingerprint(first.state_dict()) != fingerprint(HostTask().model().state_dict())


def test_model_data_and_loaders_leave_the_global_rng_unchanged() -> None:
    task, before = HostTask(), torch.get_rng_state()
    model = task.model().eval()
    for inputs, targets in [*task.train_loader(), *task.val_loader()]:
        task.loss(model(inputs), targets)
    assert torch.equal(torch.get_rng_state(), before)


def test_order_of_the_samples_differs_between_epochs_of_a_training() -> None:
    task = HostTask()
    train(task, 2)
    first, second = torch.cat(task.inputs[: task.epoch_length]), torch.cat(task.inputs[task.epoch_length :])
    assert first.shape == second.shape == (24, 6)
    assert not torch.equal(first, second)
    assert torch.equal(first.sort(0).values, second.sort(0).values)


def test_order_is_that_of_the_rng_state_at_the_start_of_the_epoch() -> None:
    torch.manual_seed(5)
    orders = [torch.cat([inputs for inputs, _ in HostTask().train_loader()]) for _ in range(2)]
    torch.rand(1)
    other = torch.cat([inputs for inputs, _ in HostTask().train_loader()])
    assert torch.equal(*orders)
    assert not torch.equal(orders[0], other)


def test_task_records_inputs_and_losses_of_training_iterations_only() -> None:
    task = HostTask()
    model = train(task, 1)
    assert (len(task.inputs), len(task.losses)) == (6, 6)
    with torch.no_grad():
        task.loss(model(task.inputs[0]), torch.zeros(4, dtype=torch.long))
    with torch.inference_mode():
        task.loss(model.eval()(task.inputs[0]), torch.zeros(4, dtype=torch.long))
    assert (len(task.inputs), len(task.losses)) == (6, 6)


def test_task_fails_in_the_named_iteration() -> None:
    task = HostTask(fail_at=3)
    with pytest.raises(TaskError, match="iteration 3"):
        train(task, 1)
    assert (len(task.inputs), len(task.losses)) == (4, 3)


def test_loss_is_nan_in_the_named_iteration() -> None:
    task = HostTask(nan_at=2)
    train(task, 1)
    assert [bool(loss.isnan()) for loss in task.losses][:3] == [False, False, True]
