"""Training with image hooks is bitwise identical to training without them."""

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
from hookbus.data.rng import get_rng_state
from hookbus.testing import fingerprint
from hookbus.trainer.trainer import Trainer
from hookbus_visualization import DetVisualizationHook, FeatureMapHook, SegVisualizationHook, VisualizationHook

ALL_CONTENT = ["predictions", "feature_maps", "attention", "cam", "gradients"]
DATA = [
    (torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(i)), torch.tensor([i % 3, (i + 1) % 3]))
    for i in range(3)
]


def parse_boxes(batch, outputs):
    """Return two boxes per image."""
    boxes = torch.tensor([[1.0, 1, 5, 5], [2, 0, 9, 9]])
    annotations = [
        {"boxes": boxes, "labels": torch.tensor([0, 1]), "scores": torch.tensor([0.9, 0.5])} for _ in batch[0]
    ]
    return {"targets": annotations, "predictions": annotations}


def parse_masks(batch, outputs):
    """Return a label map per image."""
    return {"targets": (batch[0][:, 0] > 0.5).long(), "predictions": batch[0]}


HOOKS = {
    "visualization": (VisualizationHook, {"interval": 1, "content": ALL_CONTENT}),
    "det_visualization": (DetVisualizationHook, {"interval": 1, "parse": parse_boxes}),
    "seg_visualization": (SegVisualizationHook, {"interval": 1, "parse": parse_masks}),
    "feature_map": (FeatureMapHook, {"frequency": 1}),
}


def build_hooks(names):
    return [HOOKS[name][0](backend="pillow", **HOOKS[name][1]) for name in names]


class Model(nn.Module):
    """Model with state that a forward pass may modify: batch norm, dropout, attention, a module in evaluation mode."""

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


class StateRecorder(Hook):
    """Hook that records the complete training state after each iteration, after all other hooks."""

    priority = -1

    def __init__(self):
        super().__init__()
        self.states = []

    def after_train_iter(self, run, model):
        gradients = [
            None if parameter.grad is None else fingerprint(parameter.grad) for parameter in model.parameters()
        ]
        hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
        modes = [module.training for module in model.modules()]
        self.states.append((fingerprint(model.state_dict()), gradients, hooks, modes, fingerprint(get_rng_state())))


def trainer_loop(hooks, model, optimizer, data=DATA, **options):
    Trainer(
        model, optimizer, loss_fn=functional.cross_entropy, train_loader=data, val_loader=data[:1], epochs=1, seed=0,
        hooks=hooks, default_hooks=False, device="cpu", work_dir=None, **options,
    ).fit()  # fmt: skip


def custom_loop(hooks, model, optimizer, accumulate=1, precision="fp32"):
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


def record_states(loop, hooks, compiled=False, **options):
    torch.manual_seed(0)
    model = Model()
    if compiled:
        model.compile(backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loop([*build_hooks(hooks), recorder := StateRecorder()], model, optimizer, **options)
    return recorder.states


@pytest.mark.parametrize("hook", HOOKS)
def test_training_state_is_identical_without_the_hook(hook):
    expected = record_states(trainer_loop, [], accumulate=2)
    assert record_states(trainer_loop, [hook], accumulate=2) == expected
    assert len(expected) == len(DATA)


@pytest.mark.slow
@pytest.mark.timeout(600)
@given(
    hooks=st.lists(st.sampled_from(list(HOOKS)), min_size=1, unique=True),
    loop=st.sampled_from([trainer_loop, custom_loop]),
    accumulate=st.sampled_from([1, 2]),
    precision=st.sampled_from(["fp32", "bf16"]),
    compiled=st.booleans(),
)
@settings(deadline=None, max_examples=30)
def test_training_state_is_identical_for_any_training_and_hooks(hooks, loop, **options):
    assert record_states(loop, hooks, **options) == record_states(loop, [], **options)


@pytest.mark.slow
@pytest.mark.parametrize("hook", HOOKS)
def test_no_tensor_is_kept_alive_after_rendering(hook):
    class Counter(Hook):
        priority = -1

        def __init__(self):
            super().__init__()
            self.counts = []

        def after_train_iter(self):
            gc.collect()
            self.counts.append(sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects()))

    model, counter = Model(), Counter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer_loop([*build_hooks([hook]), counter], model, optimizer)
    assert len(set(counter.counts[1:])) == 1


class MemoryTracker(TorchDispatchMode):
    """Mode that sums the memory of all live tensors after each operation."""

    def __init__(self, tensors):
        super().__init__()
        self.storages, self.peak = {}, 0
        self.add(tensors)

    def add(self, values):
        for value in values:
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                self.storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.add(tree_leaves(result))
        self.storages = {key: entry for key, entry in self.storages.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.storages.values()))
        return result


@pytest.mark.slow
@pytest.mark.parametrize("hook", HOOKS)
def test_peak_memory_is_that_of_training_with_any_hook(hook):
    """Compare with a run with another hook, because a run with any hook keeps the last losses."""
    batches = [(torch.rand(64, 3, 8, 8), torch.arange(64) % 3) for _ in range(3)]

    def peak(names):
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with MemoryTracker(chain(model.parameters(), model.buffers(), *batches)) as memory:
            trainer_loop([Hook(), *build_hooks(names)], model, optimizer, data=batches)
        return memory.peak

    assert peak([hook]) == peak([])
