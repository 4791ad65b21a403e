"""Generate the images of the gallery page: `python docs/examples/gallery.py docs/images`."""

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


def train_model(name: str, model: nn.Module, splits: Splits, epochs: int, hooks: list[Hook], loss: Loss) -> Trainer:
    """Train on a dataset, and validate once at the end."""
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


def plot_digits() -> None:
    """Plot predictions and explanations of a small CNN on scanned digits."""
    content = ["predictions", "feature_maps", "cam", "gradients"]
    hook = VisualizationHook(
        interval=10**6, max_samples=12, backend="pillow", content=content, layers=["0"], cam_layer="0"
    )
    train_model("digits", cnn(), digits(), 3, [hook], functional.cross_entropy)


class ViT(nn.Module):
    """A small vision transformer: patches of 2 by 2 pixels, and a class token."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.positions
        scores: Tensor = self.head(self.layers(tokens)[:, 0])
        return scores


def plot_attention() -> None:
    """Plot the attention of a vision transformer."""
    hook = VisualizationHook(interval=10**6, max_samples=12, backend="pillow", content=["attention"])
    train_model("attention", ViT(), digits(), 10, [hook], functional.cross_entropy)


# -- synthetic scenes--------------------------------------------------------------------------------

SIZE = 64
NAMES = ["background", "disc", "box"]


def make_scene(generator: np.random.Generator) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], list[list[int]]]:
    """Return an image of discs and boxes with noise, its label map, and [class, x1, y1, x2, y2] of each object."""
    image, labels, objects = Image.new("RGB", (SIZE, SIZE), (70, 90, 80)), Image.new("L", (SIZE, SIZE)), []
    for _ in range(generator.integers(2, 5)):
        label = int(generator.integers(1, 3))
        left, top = (int(offset) for offset in generator.integers(0, SIZE - 26, 2))
        box = [left, top, left + int(generator.integers(12, 26)), top + int(generator.integers(12, 26))]
        for canvas, color in ((image, tuple(generator.integers(120, 250, 3).tolist())), (labels, label)):
            draw = ImageDraw.Draw(canvas)
            (draw.ellipse if label == 1 else draw.rectangle)(box, fill=color)
        objects.append([label, *box])
    noise = generator.normal(0, 12, (SIZE, SIZE, 3))
    return np.clip(np.array(image) + noise, 0, 255).astype(np.uint8), np.array(labels), objects


def make_scenes(count: int, seed: int) -> TensorDataset:
    """Return images (3, H, W) with values from 0 to 1, and label maps (H, W)."""
    generator = np.random.default_rng(seed)
    images, labels, _ = zip(*(make_scene(generator) for _ in range(count)), strict=True)
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255
    return TensorDataset(pixels, torch.from_numpy(np.stack(labels)).long())


def plot_masks() -> None:
    """Plot the segmentation of a small network."""

    def block(inputs: int, outputs: int, dilation: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=dilation, dilation=dilation), nn.ReLU())

    model = nn.Sequential(*(block(3 if i == 0 else 12, 12, 2**i) for i in range(4)), nn.Conv2d(12, 3, 1))
    splits = Splits(train=make_scenes(192, 0), val=make_scenes(4, 1))
    hook = SegVisualizationHook(interval=10**6, class_names=NAMES, ignore_index=0, show_edge=True, backend="pillow")
    train_model("masks", model, splits, 14, [hook], functional.cross_entropy)


class DummyDetector(nn.Module):
    """A dummy detector that returns the targets, shifted, with one missing and one additional box."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, images: Tensor, objects: list[dict[str, Tensor]]) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(0)
        predictions = []
        for target in objects:
            boxes, labels = target["boxes"][1:], target["labels"][1:]
            boxes = boxes + 3 * torch.randn(boxes.shape, generator=generator)
            boxes = torch.cat([boxes, torch.tensor([[4.0, 38, 20, 58]])])
            scores = torch.rand(len(boxes), generator=generator) * 0.5 + 0.5
            predictions.append({"boxes": boxes, "labels": torch.cat([labels, torch.tensor([1])]), "scores": scores})
        return {"loss": self.weight.sum(), "predictions": predictions}


def plot_boxes() -> None:
    """Plot target and predicted boxes."""
    generator = np.random.default_rng(1)
    scenes = [make_scene(generator) for _ in range(4)]
    images = torch.from_numpy(np.stack([image for image, _, _ in scenes])).permute(0, 3, 1, 2)
    objects = [torch.tensor(boxes) for _, _, boxes in scenes]
    batch = {"images": images, "objects": [{"boxes": o[:, 1:].float(), "labels": o[:, 0]} for o in objects]}
    hook = DetVisualizationHook(
        interval=1, class_names=NAMES, backend="pillow", parse=lambda batch, outputs: {"targets": batch["objects"]}
    )
    model = DummyDetector()
    Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), train_loader=[batch], epochs=1, work_dir="runs/boxes",
        hooks=[hook], default_hooks=False,
    ).fit()  # fmt: skip


# -- command line---------------------------------------------------------------------------------

IMAGES = {
    "predictions": "digits/visualization/visualization/val-predictions-*.png",
    "feature_maps": "digits/visualization/visualization/val-feature_maps-0-*.png",
    "cam": "digits/visualization/visualization/val-cam-*.png",
    "gradients": "digits/visualization/visualization/val-gradients-*.png",
    "attention": "attention/visualization/visualization/val-attention-layers.layers.1*.png",
    "masks": "masks/visualization/seg_visualization/val-*.png",
    "boxes": "boxes/visualization/det_visualization/train-*.png",
}
"""Name on the gallery page and path pattern of its file; of multiple files, the last is used."""


def main(folder: Path) -> None:
    """Run all examples in the current directory and copy their images."""
    folder.mkdir(parents=True, exist_ok=True)
    for plot in (plot_digits, plot_attention, plot_masks, plot_boxes):
        plot()
    for name, pattern in IMAGES.items():
        shutil.copy(sorted(Path("runs").glob(pattern))[-1], folder / f"{name}.png")


if __name__ == "__main__":
    output = Path(sys.argv[1]).absolute()
    with TemporaryDirectory() as directory, contextlib.chdir(directory):
        main(output)
