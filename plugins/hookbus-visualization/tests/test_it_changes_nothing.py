"""Whatever is drawn, the training is bit for bit the one without it."""

import gc
from contextlib import nullcontext
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hookbus import Hook, HookBus
from hookbus.loop import Trainer
from hookbus.testing import fingerprint
from hookbus.training.rng import get_rng_state
from hookbus_visualization import DetVisualizationHook, FeatureMapHook, SegVisualizationHook, VisualizationHook

EVERYTHING = ["predictions", "feature_maps", "attention", "cam", "gradients"]
DATA = [
    (torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(i)), torch.tensor([i % 3, (i + 1) % 3]))
    for i in range(3)
]


def as_boxes(batch, outputs):
    """Two boxes for each image."""
    boxes = torch.tensor([[1.0, 1, 5, 5], [2, 0, 9, 9]])
    found = [{"boxes": boxes, "labels": torch.tensor([0, 1]), "scores": torch.tensor([0.9, 0.5])} for _ in batch[0]]
    return {"targets": found, "predictions": found}


def as_masks(batch, outputs):
    """A label map for each image."""
    return {"targets": (batch[0][:, 0] > 0.5).long(), "predictions": batch[0]}


HOOKS = {
    "visualization": (VisualizationHook, {"interval": 1, "content": EVERYTHING}),
    "det_visualization": (DetVisualizationHook, {"interval": 1, "parse": as_boxes}),
    "seg_visualization": (SegVisualizationHook, {"interval": 1, "parse": as_masks}),
    "feature_map": (FeatureMapHook, {"frequency": 1}),
}


def built(names):
    return [HOOKS[name][0](backend="pillow", **HOOKS[name][1]) for name in names]


class Model(nn.Module):
    """Has what may be disturbed: batch norm, dropout, attention, a part that always evaluates."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 2, stride=2), nn.BatchNorm2d(8)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.frozen = nn.Dropout().eval()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.norm(self.conv(x)).flatten(2).transpose(1, 2)
        return self.head(self.frozen(self.attention(x).mean(1)))

    def train(self, mode=True):
        super().train(mode)
        self.frozen.eval()
        return self


class Witness(Hook):
    """Notes everything that may not change, after each iteration, behind all other hooks."""

    priority = -1

    def __init__(self):
        super().__init__()
        self.seen = []

    def after_train_iter(self, run, model):
        gradients = [None if each.grad is None else fingerprint(each.grad) for each in model.parameters()]
        hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
        modes = [module.training for module in model.modules()]
        self.seen.append((fingerprint(model.state_dict()), gradients, hooks, modes, fingerprint(get_rng_state())))


def trainer_loop(hooks, model, optimizer, data=DATA, **options):
    Trainer(
        model, optimizer, loss_fn=functional.cross_entropy, train_loader=data, val_loader=data[:1], epochs=1, seed=0,
        hooks=hooks, default_hooks=False, device="cpu", work_dir=None, **options,
    ).fit()  # fmt: skip


def own_loop(hooks, model, optimizer, accumulate=1, precision="fp32"):
    bus = HookBus(hooks)
    autocast = nullcontext() if precision == "fp32" else torch.autocast("cpu", torch.bfloat16)
    with bus.run(model=model, optimizer=optimizer, iterations=len(DATA)) as run:
        for i, batch in run.batches(DATA):
            bus.emit("before_train_iter", batch_idx=i, batch=batch)
            with autocast:
                loss = functional.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            if (i + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
            bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": loss.detach()})


def witnessed(loop, hooks, compiled=False, **options):
    torch.manual_seed(0)
    model = Model()
    if compiled:
        model.compile(backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loop([*built(hooks), witness := Witness()], model, optimizer, **options)
    return witness.seen


@pytest.mark.parametrize("hook", HOOKS)
def test_everything_is_as_it_is_without_the_hook(hook):
    without = witnessed(trainer_loop, [], accumulate=2)
    assert witnessed(trainer_loop, [hook], accumulate=2) == without
    assert len(without) == len(DATA)


@pytest.mark.slow
@pytest.mark.timeout(600)
@given(
    hooks=st.lists(st.sampled_from(list(HOOKS)), min_size=1, unique=True),
    loop=st.sampled_from([trainer_loop, own_loop]),
    accumulate=st.sampled_from([1, 2]),
    precision=st.sampled_from(["fp32", "bf16"]),
    compiled=st.booleans(),
)
@settings(deadline=None, max_examples=30)
def test_so_it_is_whatever_the_training_and_the_hooks_are(hooks, loop, **options):
    assert witnessed(loop, hooks, **options) == witnessed(loop, [], **options)


@pytest.mark.parametrize("hook", HOOKS)
def test_no_tensor_outlives_the_drawing(hook):
    class Counter(Hook):
        priority = -1

        def __init__(self):
            super().__init__()
            self.counts = []

        def after_train_iter(self):
            gc.collect()
            self.counts.append(sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects()))

    model, counter = Model(), Counter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer_loop([*built([hook]), counter], model, optimizer)
    assert len(set(counter.counts[1:])) == 1


class Memory(TorchDispatchMode):
    """Adds up the memory of all tensors that are alive, after each operation."""

    def __init__(self, there):
        super().__init__()
        self.live, self.peak = {}, 0
        self.add(there)

    def add(self, values):
        for each in values:
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                self.live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        done = func(*args, **(kwargs or {}))
        self.add(tree_leaves(done))
        self.live = {key: found for key, found in self.live.items() if not found[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return done


@pytest.mark.parametrize("hook", HOOKS)
def test_the_most_memory_is_what_training_with_any_hook_needs(hook):
    """The batches are larger than what is drawn. With any hook at all the run keeps the last losses."""
    batches = [(torch.rand(64, 3, 8, 8), torch.arange(64) % 3) for _ in range(3)]

    def peak(names):
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with Memory(chain(model.parameters(), model.buffers(), *batches)) as memory:
            trainer_loop([Hook(), *built(names)], model, optimizer, data=batches)
        return memory.peak

    assert peak([hook]) == peak([])
