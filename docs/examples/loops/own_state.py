"""Save state of the loop: the hidden state of truncated backpropagation through time."""

import torch
from torch import nn

from hookbus import HookBus
from hookbus_checkpoint import CheckpointHook
from hookbus_logger import JsonlHook

torch.manual_seed(0)
text = torch.randint(0, 8, (4, 81))
model = nn.ModuleDict({"embed": nn.Embedding(8, 8), "rnn": nn.GRU(8, 8, batch_first=True)})
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
LENGTH, CHUNKS = 5, 16
hidden = torch.zeros(1, 4, 8)


def get_hidden():
    return hidden


def set_hidden(value):
    global hidden
    hidden = value


bus = HookBus(
    [CheckpointHook(interval=3, by_epoch=False, save_best=False), JsonlHook(interval=1)]
)
with bus.run(
    model=model,
    optimizer=optimizer,
    epochs=3,
    work_dir="runs/text",
    resume="auto",
    state={"hidden": (get_hidden, set_hidden)},
) as run:
    for epoch in run.epochs():
        bus.emit("before_train_epoch")
        for i in range(run.iters_done - epoch * CHUNKS, CHUNKS):
            chunk = text[:, i * LENGTH : (i + 1) * LENGTH + 1]
            bus.emit("before_train_iter", batch_idx=i, batch=chunk)
            if i == 0:
                hidden = torch.zeros_like(hidden)
            outputs, hidden = model["rnn"](model["embed"](chunk[:, :-1]), hidden.detach())
            loss = nn.functional.cross_entropy(outputs.flatten(0, 1), chunk[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hidden = hidden.detach()
            bus.emit(
                "after_train_iter", batch_idx=i, batch=chunk, outputs={"loss": loss.detach()}
            )
            if run.should_stop:
                break
        bus.emit("after_train_epoch")
