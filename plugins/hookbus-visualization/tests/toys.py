"""Shared test helpers: a short training run, and a hook that records its images."""

import torch
from hypothesis import settings

from hookbus import Hook, Trainer

render_settings = settings(deadline=None)
"""Settings for properties of rendered images, whose run time depends on the load of the machine."""


class ImageRecorder(Hook):
    """Hook that stores the logged images.

    Attributes:
        records: Tag, step, pixels and caption of each record.
    """

    def __init__(self):
        super().__init__()
        self.records = []

    def log_images(self, tag, images, step, caption):
        self.records.append((tag, step, images, caption))


def train(model, batches, *hooks, lr=0.0, **options):
    """Train one epoch on the CPU, by default without a work directory, and return the trainer."""
    settings = {"epochs": 1, "default_hooks": False, "device": "cpu", "work_dir": None, **options}
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    trainer = Trainer(model, optimizer, train_loader=batches, hooks=hooks, **settings)
    trainer.fit()
    return trainer


def train_and_record(model, batches, hook, **options):
    """Train, and return the logged images by tag."""
    recorder = ImageRecorder()
    train(model, batches, hook, recorder, **options)
    return {tag: images for tag, _, images, _ in recorder.records}
