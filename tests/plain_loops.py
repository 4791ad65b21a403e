"""The example loops that read their own data, without hookbus. Each function returns the losses of its iterations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def train_with_lbfgs() -> list[float]:
    """Train as in lbfgs.py."""
    torch.manual_seed(0)
    inputs = torch.randn(64, 4)
    targets = inputs.square().sum(1, keepdim=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    return [float(optimizer.step(closure).detach()) for _ in range(12)]


def train_policy() -> list[float]:
    """Train as in without_epochs.py."""
    torch.manual_seed(0)
    rewards, losses = torch.tensor([0.1, 0.5, 0.9, 0.3]), []
    policy = nn.Linear(1, 4)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)
    for _ in range(40):
        arms = torch.distributions.Categorical(logits=policy(torch.ones(8, 1)))
        actions = arms.sample()
        loss = -(arms.log_prob(actions) * torch.bernoulli(rewards[actions])).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def train_recurrent_model() -> list[float]:
    """Train as in own_state.py."""
    torch.manual_seed(0)
    text, losses = torch.randint(0, 8, (4, 81)), []
    model = nn.ModuleDict({"embed": nn.Embedding(8, 8), "rnn": nn.GRU(8, 8, batch_first=True)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(48):
        start = step % 16 * 5
        if start == 0:
            hidden = torch.zeros(1, 4, 8)
        outputs, hidden = model["rnn"](model["embed"](text[:, start : start + 5]), hidden.detach())
        loss = nn.functional.cross_entropy(outputs.flatten(0, 1), text[:, start + 1 : start + 6].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


PLAIN_LOOPS: dict[str, Callable[[], list[float]]] = {
    "lbfgs": train_with_lbfgs, "without_epochs": train_policy, "own_state": train_recurrent_model
}  # fmt: skip
"""Plain loops by name of the example."""
