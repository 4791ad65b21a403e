"""The pictures of the gallery page: `python docs/examples/gallery.py docs/images` draws them again."""

import contextlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Hook, Splits, Trainer
from hookbus_visualization import DetVisualizationHook, SegVisualizationHook, VisualizationHook
from hookbus_zoo import cnn, digits

Loss = Callable[[Any, Any], Tensor]


def trained(name: str, model: nn.Module, splits: Splits, epochs: int, hooks: list[Hook], loss: Loss) -> Trainer:
    """Train on a data set, and validate once at the end."""
    torch.manual_seed(0)
    trainer = Trainer(
        model,
        lambda parameters: torch.optim.AdamW(parameters, lr=5e-3),
        loss_fn=loss,
        train_loader=DataLoader(splits.train, batch_size=32, shuffle=True),
        val_loader=DataLoader(splits.val, batch_size=12),
        epochs=epochs,
        work_dir=f"runs/{name}",
        hooks=hooks,
        default_hooks=False,
        seed=0,
    )
    trainer.fit()
    trainer.validate()
    return trainer


# -- scanned digits --------------------------------------------------------------------------------


def draw_digits() -> None:
    """What a small CNN says of scanned digits, and why."""
    content = ["predictions", "feature_maps", "cam", "gradients"]
    hook = VisualizationHook(
        interval=10**6, max_samples=12, backend="pillow", content=content, layers=["0"], cam_layer="0"
    )
    trained("digits", cnn(), digits(), 3, [hook], functional.cross_entropy)


class ViT(nn.Module):
    """A small vision transformer: patches of 2 by 2 pixels, and a class token."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.places
        scores: Tensor = self.head(self.layers(tokens)[:, 0])
        return scores


def draw_attention() -> None:
    """Where a vision transformer looks."""
    hook = VisualizationHook(interval=10**6, max_samples=12, backend="pillow", content=["attention"])
    trained("attention", ViT(), digits(), 10, [hook], functional.cross_entropy)


# -- drawn scenes ----------------------------------------------------------------------------------

SIZE = 64
NAMES = ["background", "disc", "box"]


def scene(generator: np.random.Generator) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], list[list[int]]]:
    """Discs and boxes on a noisy ground: the image, the class of each pixel, and [class, x1, y1, x2, y2] of each."""
    image, labels, found = Image.new("RGB", (SIZE, SIZE), (70, 90, 80)), Image.new("L", (SIZE, SIZE)), []
    for _ in range(generator.integers(2, 5)):
        kind = int(generator.integers(1, 3))
        left, top = (int(each) for each in generator.integers(0, SIZE - 26, 2))
        box = [left, top, left + int(generator.integers(12, 26)), top + int(generator.integers(12, 26))]
        for canvas, colour in ((image, tuple(generator.integers(120, 250, 3).tolist())), (labels, kind)):
            draw = ImageDraw.Draw(canvas)
            (draw.ellipse if kind == 1 else draw.rectangle)(box, fill=colour)
        found.append([kind, *box])
    noise = generator.normal(0, 12, (SIZE, SIZE, 3))
    return np.clip(np.array(image) + noise, 0, 255).astype(np.uint8), np.array(labels), found


def scenes(count: int, seed: int) -> TensorDataset:
    """Images (3, H, W) from 0 to 1, and label maps."""
    generator = np.random.default_rng(seed)
    images, labels, _ = zip(*(scene(generator) for _ in range(count)), strict=True)
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255
    return TensorDataset(pixels, torch.from_numpy(np.stack(labels)).long())


def draw_masks() -> None:
    """What a small network takes each pixel for."""

    def block(inputs: int, outputs: int, dilation: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=dilation, dilation=dilation), nn.ReLU())

    model = nn.Sequential(*(block(3 if i == 0 else 12, 12, 2**i) for i in range(4)), nn.Conv2d(12, 3, 1))
    splits = Splits(train=scenes(192, 0), val=scenes(4, 1))
    hook = SegVisualizationHook(interval=10**6, class_names=NAMES, ignore_index=0, show_edge=True, backend="pillow")
    trained("masks", model, splits, 14, [hook], functional.cross_entropy)


class Guess(nn.Module):
    """No detector: it gives the true boxes back, a little beside the place, some missing and one too many."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, images: Tensor, objects: list[dict[str, Tensor]]) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(0)
        found = []
        for each in objects:
            boxes, labels = each["boxes"][1:], each["labels"][1:]
            boxes = boxes + 3 * torch.randn(boxes.shape, generator=generator)
            boxes = torch.cat([boxes, torch.tensor([[4.0, 38, 20, 58]])])
            scores = torch.rand(len(boxes), generator=generator) * 0.5 + 0.5
            found.append({"boxes": boxes, "labels": torch.cat([labels, torch.tensor([1])]), "scores": scores})
        return {"loss": self.weight.sum(), "predictions": found}


def draw_boxes() -> None:
    """Objects, and where they are said to be."""
    generator = np.random.default_rng(1)
    drawn = [scene(generator) for _ in range(4)]
    images = torch.from_numpy(np.stack([image for image, _, _ in drawn])).permute(0, 3, 1, 2)
    objects = [torch.tensor(found) for _, _, found in drawn]
    batch = {"images": images, "objects": [{"boxes": o[:, 1:].float(), "labels": o[:, 0]} for o in objects]}
    hook = DetVisualizationHook(
        interval=1, class_names=NAMES, backend="pillow", parse=lambda batch, outputs: {"targets": batch["objects"]}
    )
    model = Guess()
    Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), train_loader=[batch], epochs=1, work_dir="runs/boxes",
        hooks=[hook], default_hooks=False,
    ).fit()  # fmt: skip


# -- all of them -----------------------------------------------------------------------------------

PICTURES = {
    "predictions": "digits/visualization/visualization/val-predictions-*.png",
    "feature_maps": "digits/visualization/visualization/val-feature_maps-0-*.png",
    "cam": "digits/visualization/visualization/val-cam-*.png",
    "gradients": "digits/visualization/visualization/val-gradients-*.png",
    "attention": "attention/visualization/visualization/val-attention-layers.layers.1*.png",
    "masks": "masks/visualization/seg_visualization/val-*.png",
    "boxes": "boxes/visualization/det_visualization/train-*.png",
}
"""By name on the page, where the run has put it; of several files the last."""


def main(folder: Path) -> None:
    """Run all examples in a directory of their own, and copy their pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for draw in (draw_digits, draw_attention, draw_masks, draw_boxes):
        draw()
    for name, pattern in PICTURES.items():
        shutil.copy(sorted(Path("runs").glob(pattern))[-1], folder / f"{name}.png")


if __name__ == "__main__":
    goal = Path(sys.argv[1]).absolute()
    with TemporaryDirectory() as directory, contextlib.chdir(directory):
        main(goal)
