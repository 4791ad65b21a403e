"""Use hookbus hooks in a custom training loop."""

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from hookbus import HookBus, Run
from hookbus_checkpoint import CheckpointHook
from hookbus_zoo import cnn, digits

splits = digits()
train = DataLoader(splits.train, batch_size=64, shuffle=True)
val = DataLoader(splits.val, batch_size=360)
model = cnn()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def validate() -> dict[str, float]:
    hits = sum(int((model(x).argmax(1) == y).sum()) for x, y in val)
    return {"accuracy": hits / len(splits.val)}


def main() -> Run:
    bus = HookBus(hooks=[CheckpointHook(max_keep_ckpts=1)])
    with bus.run(model=model, optimizer=optimizer, epochs=3, work_dir="runs/mine", validate=validate) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, (x, y) in run.batches(train):
                bus.emit("before_train_iter", batch_idx=i, batch=(x, y))
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                bus.emit("after_train_iter", batch_idx=i, batch=(x, y), outputs={"loss": loss.detach()})
            run.request_validation()
            bus.emit("after_train_epoch")
    return run


if __name__ == "__main__":
    run = main()
    print(f"{run.outcome} after {run.steps_done} optimizer steps, best {run.best['val/accuracy'].value:.4f}")
