"""Train a GAN: two models and two optimizers by name."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader

from hookbus import HookBus
from hookbus_checkpoint import CheckpointHook
from hookbus_logger import JsonlHook

torch.manual_seed(0)
points = torch.randn(64, 2) * 0.5 + 1
loader = DataLoader(points, batch_size=16, shuffle=True)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
discriminator = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
models = {"G": generator, "D": discriminator}
optimizers = {name: torch.optim.Adam(model.parameters(), 0.01) for name, model in models.items()}

bus = HookBus(
    [CheckpointHook(interval=3, by_epoch=False, save_best=False), JsonlHook(interval=1)]
)
with bus.run(
    model=models, optimizer=optimizers, epochs=4, seed=0, work_dir="runs/gan", resume="auto"
) as run:
    for _ in run.epochs():
        bus.emit("before_train_epoch")
        for i, real in run.batches(loader):
            bus.emit("before_train_iter", batch_idx=i, batch=real)
            fake = generator(torch.randn(len(real), 4))
            real_score, fake_score = discriminator(real), discriminator(fake.detach())
            loss_d = bce(real_score, torch.ones_like(real_score))
            loss_d = loss_d + bce(fake_score, torch.zeros_like(fake_score))
            optimizers["D"].zero_grad()
            loss_d.backward()
            optimizers["D"].step()

            fake_score = discriminator(fake)
            loss_g = bce(fake_score, torch.ones_like(fake_score))
            optimizers["G"].zero_grad()
            loss_g.backward()
            optimizers["G"].step()
            outputs = {"loss": loss_d.detach() + loss_g.detach()}
            bus.emit("after_train_iter", batch_idx=i, batch=real, outputs=outputs)
        bus.emit("after_train_epoch")
