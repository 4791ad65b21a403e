from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

from hookbus.errors import ConfigError, LoopError
from hookbus_zoo import cifar10, digits

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)


def to_pairs(split: Any) -> list[tuple[tuple[float, ...], int]]:
    """Return the images as 64 values from 0 to 16, with their labels."""
    return [(tuple((image * 16).flatten().tolist()), int(label)) for image, label in split]


class TestDigits:
    def test_splits_have_1438_training_and_359_validation_images(self) -> None:
        splits = digits()

        assert (len(splits.train), len(splits.val), splits.test) == (1438, 359, None)
        assert (splits.input_shape, splits.num_classes) == ((1, 8, 8), 10)

    @pytest.mark.parametrize(("share", "val_size"), [(0.5, 898), (0.25, 449), (0.001, 2), (0.999, 1795)])
    def test_val_size_is_rounded_to_the_nearest_integer(self, share: float, val_size: int) -> None:
        splits = digits(val_share=share)

        assert (len(splits.train), len(splits.val)) == (1797 - val_size, val_size)

    def test_images_are_floats_in_0_to_1_with_labels_from_0_to_9(self) -> None:
        for split in (digits().train, digits().val):
            images, labels = split.tensors
            assert images.shape == (len(split), 1, 8, 8)
            assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
            assert (images.min(), images.max()) == (0.0, 1.0)
            assert sorted(set(labels.tolist())) == list(range(10))

    def test_every_image_is_in_one_split_with_its_label(self) -> None:
        splits = digits()
        images, labels = load_digits(return_X_y=True)
        expected = [(tuple(image.tolist()), int(label)) for image, label in zip(images, labels, strict=True)]

        assert sorted(to_pairs(splits.train) + to_pairs(splits.val)) == sorted(expected)

    def test_seed_determines_the_split(self) -> None:
        first, again, other = digits(seed=3), digits(seed=3), digits(seed=4)

        assert to_pairs(first.val) == to_pairs(again.val)
        assert to_pairs(first.train) == to_pairs(again.train)
        assert to_pairs(first.val) != to_pairs(other.val)

    def test_global_rng_state_is_not_modified(self) -> None:
        torch.manual_seed(5)
        digits()
        drawn = torch.rand(1)
        torch.manual_seed(5)

        assert drawn == torch.rand(1)

    @pytest.mark.parametrize("share", [0, 1, -0.2, 1.5, 0.0001, 0.9999, float("nan"), "0.2"])
    def test_share_that_leaves_a_split_empty_raises(self, share: Any) -> None:
        with pytest.raises(ConfigError) as caught:
            digits(val_share=share)

        assert str(caught.value) == (
            "val_share: should be a number between 0 and 1 that leaves at least one of the 1,797 images in each "
            f"split, got {share!r}."
        )


def normalize(row: Any) -> torch.Tensor:
    """Return (x / 255 - mean) / std per channel for one row of 3,072 bytes."""
    channels = [[(byte / 255 - MEAN[c]) / STD[c] for byte in row[1024 * c : 1024 * (c + 1)].tolist()] for c in range(3)]
    return torch.tensor(channels).view(3, 32, 32)


class TestCifar10:
    def test_published_format_is_read(self, small_cifar: Any) -> None:
        splits = cifar10(str(small_cifar.root))

        assert (len(splits.train), len(splits.val), splits.test) == (10, 2, None)
        assert (splits.input_shape, splits.num_classes) == ((3, 32, 32), 10)
        assert [label for _, label in splits.train] == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
        assert [label for _, label in splits.val] == [5, 6]

    def test_validation_images_are_only_normalized(self, small_cifar: Any) -> None:
        splits = cifar10(str(small_cifar.root))

        for (image, _), row in zip(splits.val, small_cifar.data["test_batch"], strict=True):
            assert (image.shape, image.dtype) == ((3, 32, 32), torch.float32)
            torch.testing.assert_close(image, normalize(row), rtol=1e-5, atol=1e-5)

    def test_training_images_are_cropped_with_padding_4_and_flipped(self, small_cifar: Any) -> None:
        splits = cifar10(str(small_cifar.root))
        image = normalize(small_cifar.data["data_batch_1"][0])
        black = normalize(torch.zeros(3072, dtype=torch.uint8)).amax((1, 2)).view(3, 1, 1)
        padded = black.expand(3, 40, 40).clone()
        padded[:, 4:36, 4:36] = image
        crops = set()
        torch.manual_seed(0)
        for _ in range(150):
            cropped, _ = splits.train[0]
            crops.add(locate_crop(cropped, padded))

        tops, lefts, flips = (set(values) for values in zip(*crops, strict=True))
        assert (tops, lefts, flips) == (set(range(9)), set(range(9)), {False, True})

    def test_augmentation_is_determined_by_the_seed(self, small_cifar: Any) -> None:
        splits = cifar10(str(small_cifar.root))

        torch.manual_seed(7)
        first = splits.train[3][0]
        torch.manual_seed(7)
        assert torch.equal(first, splits.train[3][0])

    def test_archive_is_downloaded_with_download(
        self, small_cifar: Any, server: str, tmp_path: Path, torchvision: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive = tmp_path / "published" / "cifar.tar.gz"
        small_cifar.pack(archive)
        monkeypatch.setattr(torchvision.CIFAR10, "url", f"{server}/cifar.tar.gz")
        monkeypatch.setattr(torchvision.CIFAR10, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())

        splits = cifar10(str(tmp_path / "downloaded"), download=True)

        assert (len(splits.train), len(splits.val)) == (10, 2)

    def test_missing_data_raises_with_both_remedies(self, torchvision: Any, tmp_path: Path) -> None:
        with pytest.raises(LoopError) as caught:
            cifar10(str(tmp_path / "nowhere"))

        assert str(caught.value) == (
            f"CIFAR-10 is missing or corrupted in {tmp_path / 'nowhere'}. Set `dataset.download: true` to download it, "
            "or set `dataset.root` to the directory that contains cifar-10-batches-py."
        )

    @pytest.mark.parametrize("name", ["data_batch_3", "test_batch"])
    def test_corrupted_file_raises(self, name: str, small_cifar: Any) -> None:
        path = small_cifar.root / "cifar-10-batches-py" / name
        path.write_bytes(path.read_bytes()[:-1])

        with pytest.raises(
            LoopError, match=r"CIFAR-10 is missing or corrupted in .*data\. Set `dataset\.download: true`"
        ):
            cifar10(str(small_cifar.root))

    def test_failed_download_raises_with_its_cause(
        self, small_cifar: Any, server: str, torchvision: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.rmtree(small_cifar.root)
        monkeypatch.setattr(torchvision.CIFAR10, "url", f"{server}/gone.tar.gz")

        with pytest.raises(
            LoopError,
            match=r"CIFAR-10 could not be downloaded to .*data \(HTTPError: HTTP Error 404: File not found\)\. Try "
            r"again, or set `dataset\.root` to a directory that contains cifar-10-batches-py",
        ):
            cifar10(str(small_cifar.root), download=True)

    def test_missing_torchvision_raises_with_the_install_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torchvision", None)

        with pytest.raises(LoopError) as caught:
            cifar10()

        assert str(caught.value) == (
            "cifar10 requires torchvision, which is not installed. Run: pip install torchvision"
        )

    def test_incompatible_torchvision_raises(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "torchvision", raising=False)

        with pytest.raises(LoopError) as caught:
            cifar10()

        assert str(caught.value) == (
            "cifar10 requires torchvision, and the installed version is incompatible with torch "
            f"{torch.__version__} (RuntimeError: operator torchvision::nms does not exist). Install the matching "
            "version from the package index of torch."
        )


def locate_crop(image: torch.Tensor, padded: torch.Tensor) -> tuple[int, int, bool]:
    """Return the top and left of a crop in the padded image, and whether the crop was flipped."""
    crops = padded.unfold(1, 32, 1).unfold(2, 32, 1).permute(1, 2, 0, 3, 4)  # (top, left, channel, row, column)
    for flipped in (False, True):
        expected = image.flip(2) if flipped else image
        matching = (crops[:, :, 0, 16] - expected[0, 16]).abs().amax(2) < 1e-5  # one row identifies the position
        for top, left in matching.nonzero().tolist():
            torch.testing.assert_close(expected, crops[top, left], rtol=1e-5, atol=1e-5)
            return top, left, flipped
    raise AssertionError("the image is not a crop of the padded image")
