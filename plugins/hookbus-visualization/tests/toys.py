"""What the tests of several hooks share: a small training, and what it records."""

import torch
from hypothesis import settings

from hookbus import Hook, Trainer

drawing = settings(deadline=None)
"""For a property of drawings: how long drawing takes depends on what else runs."""


class Pictures(Hook):
    """Keeps what is recorded.

    Attributes:
        records: (tag, step, pixels, caption) of each record.
    """

    def __init__(self):
        super().__init__()
        self.records = []

    def log_images(self, tag, images, step, caption):
        self.records.append((tag, step, images, caption))


def trained(model, batches, *hooks, lr=0.0, **options):
    """A Trainer after one epoch on the CPU, without a work directory unless told otherwise."""
    settings = {"epochs": 1, "default_hooks": False, "device": "cpu", "work_dir": None, **options}
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    trainer = Trainer(model, optimizer, train_loader=batches, hooks=hooks, **settings)
    trainer.fit()
    return trainer


def recorded(model, batches, hook, **options):
    """The pictures that such a training records, by their names."""
    pictures = Pictures()
    trained(model, batches, hook, pictures, **options)
    return {tag: images for tag, _, images, _ in pictures.records}
