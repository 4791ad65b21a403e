"""Train without epochs, on data that is generated: REINFORCE on a bandit with four arms."""

import torch

from hookbus import HookBus
from hookbus_checkpoint import CheckpointHook
from hookbus_logger import JsonlHook

torch.manual_seed(0)
rewards = torch.tensor([0.1, 0.5, 0.9, 0.3])
policy = torch.nn.Linear(1, 4)
optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)

bus = HookBus(
    [CheckpointHook(interval=3, by_epoch=False, save_best=False), JsonlHook(interval=1)]
)
with bus.run(
    model=policy, optimizer=optimizer, iterations=40, work_dir="runs/bandit", resume="auto"
) as run:
    while not run.should_stop:
        bus.emit("before_train_iter")
        arms = torch.distributions.Categorical(logits=policy(torch.ones(8, 1)))
        actions = arms.sample()
        loss = -(arms.log_prob(actions) * torch.bernoulli(rewards[actions])).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bus.emit("after_train_iter", batch=actions, outputs={"loss": loss.detach()})
