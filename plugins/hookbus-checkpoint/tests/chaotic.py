"""Training for ckpt-chaos, which kills and restarts it. A separate program.

python chaotic.py DIRECTORY MODE
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from hookbus import HookBus
from hookbus_checkpoint import CheckpointHook


def main(directory: Path, mode: bool) -> None:
    """Train two epochs of three iterations with a checkpoint per iteration, and write the weights to `final.bin`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1])) for _ in range(3)]
    hook = CheckpointHook(interval=1, by_epoch=False, max_keep_ckpts=None, async_save=mode)
    bus = HookBus([hook])
    scores = lambda run: {"accuracy": 1 / (1 + run.epochs_done)}  # noqa: E731
    with bus.run(
        model=model, optimizer=optimizer, epochs=2, work_dir=directory, validate=scores, resume="auto", seed=1
    ) as run:
        print(f"resumed at iteration {run.iters_done}")  # noqa: T201
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for index, (x, y) in run.batches(data):
                loss = functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                bus.emit("after_train_iter", batch_idx=index, batch=(x, y), outputs={"loss": loss.detach()})
            run.request_validation()
            bus.emit("after_train_epoch")
    weights = b"".join(weight.numpy().tobytes() for weight in model.state_dict().values())
    (directory / "final.bin").write_bytes(weights)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "true")
