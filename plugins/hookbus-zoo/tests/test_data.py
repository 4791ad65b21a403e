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


def pairs(split: Any) -> list[tuple[tuple[float, ...], int]]:
    """Each picture, as 64 numbers from 0 to 16, with its label."""
    return [(tuple((image * 16).flatten().tolist()), int(label)) for image, label in split]


class TestDigits:
    def test_gives_1438_pictures_to_train_on_and_359_to_validate_on(self) -> None:
        splits = digits()

        assert (len(splits.train), len(splits.val), splits.test) == (1438, 359, None)
        assert (splits.input_shape, splits.num_classes) == ((1, 8, 8), 10)

    @pytest.mark.parametrize(("share", "held_out"), [(0.5, 898), (0.25, 449), (0.001, 2), (0.999, 1795)])
    def test_holds_the_nearest_number_to_the_share_out(self, share: float, held_out: int) -> None:
        splits = digits(val_share=share)

        assert (len(splits.train), len(splits.val)) == (1797 - held_out, held_out)

    def test_pictures_are_floats_from_0_to_1_with_labels_from_0_to_9(self) -> None:
        for split in (digits().train, digits().val):
            images, labels = split.tensors
            assert images.shape == (len(split), 1, 8, 8)
            assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
            assert (images.min(), images.max()) == (0.0, 1.0)
            assert sorted(set(labels.tolist())) == list(range(10))

    def test_each_picture_is_in_one_split_with_its_own_label(self) -> None:
        splits = digits()
        images, labels = load_digits(return_X_y=True)
        there = [(tuple(image.tolist()), int(label)) for image, label in zip(images, labels, strict=True)]

        assert sorted(pairs(splits.train) + pairs(splits.val)) == sorted(there)

    def test_the_seed_decides_which(self) -> None:
        first, again, other = digits(seed=3), digits(seed=3), digits(seed=4)

        assert pairs(first.val) == pairs(again.val)
        assert pairs(first.train) == pairs(again.train)
        assert pairs(first.val) != pairs(other.val)

    def test_the_streams_of_the_training_are_left_alone(self) -> None:
        torch.manual_seed(5)
        digits()
        drawn = torch.rand(1)
        torch.manual_seed(5)

        assert drawn == torch.rand(1)

    @pytest.mark.parametrize("share", [0, 1, -0.2, 1.5, 0.0001, 0.9999, float("nan"), "0.2"])
    def test_a_share_that_leaves_one_side_empty_is_refused(self, share: Any) -> None:
        with pytest.raises(ConfigError) as caught:
            digits(val_share=share)

        assert str(caught.value) == (
            "val_share: should be a number between 0 and 1 that leaves some of the 1,797 on both sides, "
            f"but it is {share!r}."
        )


def normalised(row: Any) -> torch.Tensor:
    """(x / 255 - mean) / std per channel, written out for one row of 3,072 bytes."""
    channels = [[(byte / 255 - MEAN[c]) / STD[c] for byte in row[1024 * c : 1024 * (c + 1)].tolist()] for c in range(3)]
    return torch.tensor(channels).view(3, 32, 32)


class TestCifar10:
    def test_reads_the_published_layout(self, small_cifar: Any) -> None:
        splits = cifar10(str(small_cifar.root))

        assert (len(splits.train), len(splits.val), splits.test) == (10, 2, None)
        assert (splits.input_shape, splits.num_classes) == ((3, 32, 32), 10)
        assert [label for _, label in splits.train] == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
        assert [label for _, label in splits.val] == [5, 6]

    def test_pictures_to_validate_on_are_only_normalised(self, small_cifar: Any) -> None:
        splits = cifar10(str(small_cifar.root))

        for (image, _), row in zip(splits.val, small_cifar.data["test_batch"], strict=True):
            assert (image.shape, image.dtype) == ((3, 32, 32), torch.float32)
            torch.testing.assert_close(image, normalised(row), rtol=1e-5, atol=1e-5)

    def test_pictures_to_train_on_are_cropped_from_a_black_border_of_4_and_flipped(self, small_cifar: Any) -> None:
        splits = cifar10(str(small_cifar.root))
        whole = normalised(small_cifar.data["data_batch_1"][0])
        black = normalised(torch.zeros(3072, dtype=torch.uint8)).amax((1, 2)).view(3, 1, 1)
        padded = black.expand(3, 40, 40).clone()
        padded[:, 4:36, 4:36] = whole
        found = set()
        torch.manual_seed(0)
        for _ in range(150):
            image, _ = splits.train[0]
            found.add(place_of(image, padded))

        tops, lefts, flips = (set(places) for places in zip(*found, strict=True))
        assert (tops, lefts, flips) == (set(range(9)), set(range(9)), {False, True})

    def test_two_draws_of_one_seed_are_equal(self, small_cifar: Any) -> None:
        splits = cifar10(str(small_cifar.root))

        torch.manual_seed(7)
        first = splits.train[3][0]
        torch.manual_seed(7)
        assert torch.equal(first, splits.train[3][0])

    def test_the_archive_is_fetched_where_told_so(
        self, small_cifar: Any, server: str, tmp_path: Path, torchvision: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive = tmp_path / "published" / "cifar.tar.gz"
        small_cifar.pack(archive)
        monkeypatch.setattr(torchvision.CIFAR10, "url", f"{server}/cifar.tar.gz")
        monkeypatch.setattr(torchvision.CIFAR10, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())

        splits = cifar10(str(tmp_path / "fetched"), download=True)

        assert (len(splits.train), len(splits.val)) == (10, 2)

    def test_data_that_is_not_there_is_told_with_both_ways_to_it(self, torchvision: Any, tmp_path: Path) -> None:
        with pytest.raises(LoopError) as caught:
            cifar10(str(tmp_path / "nowhere"))

        assert str(caught.value) == (
            f"CIFAR-10 is not in {tmp_path / 'nowhere'}, or damaged. Set dataset.download: true to fetch it, or "
            "dataset.root to the directory that holds cifar-10-batches-py."
        )

    @pytest.mark.parametrize("name", ["data_batch_3", "test_batch"])
    def test_a_file_that_is_damaged_is_told(self, name: str, small_cifar: Any) -> None:
        path = small_cifar.root / "cifar-10-batches-py" / name
        path.write_bytes(path.read_bytes()[:-1])

        with pytest.raises(LoopError, match=r"CIFAR-10 is not in .*data, or damaged\. Set dataset\.download: true"):
            cifar10(str(small_cifar.root))

    def test_a_download_that_fails_is_told_with_its_cause(
        self, small_cifar: Any, server: str, torchvision: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.rmtree(small_cifar.root)
        monkeypatch.setattr(torchvision.CIFAR10, "url", f"{server}/gone.tar.gz")

        with pytest.raises(
            LoopError,
            match=r"CIFAR-10 could not be fetched into .*data \(HTTPError: HTTP Error 404: File not found\)\. Try "
            r"again, or set dataset\.root to a directory that holds cifar-10-batches-py",
        ):
            cifar10(str(small_cifar.root), download=True)

    def test_without_torchvision_the_line_that_installs_it_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torchvision", None)

        with pytest.raises(LoopError) as caught:
            cifar10()

        assert str(caught.value) == ("cifar10 needs torchvision, which is not installed. Run: pip install torchvision")

    def test_a_torchvision_made_for_another_torch_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "torchvision", raising=False)

        with pytest.raises(LoopError) as caught:
            cifar10()

        assert str(caught.value) == (
            "cifar10 needs torchvision, and the one that is installed does not work with torch "
            f"{torch.__version__} (RuntimeError: operator torchvision::nms does not exist). Install the one made for "
            "it, from where torch came from."
        )


def place_of(image: torch.Tensor, padded: torch.Tensor) -> tuple[int, int, bool]:
    """Where in a padded picture a crop of it lies, and whether it was flipped."""
    crops = padded.unfold(1, 32, 1).unfold(2, 32, 1).permute(1, 2, 0, 3, 4)  # (top, left, channel, row, column)
    for flipped in (False, True):
        wanted = image.flip(2) if flipped else image
        matching = (crops[:, :, 0, 16] - wanted[0, 16]).abs().amax(2) < 1e-5  # one row tells the place
        for top, left in matching.nonzero().tolist():
            torch.testing.assert_close(wanted, crops[top, left], rtol=1e-5, atol=1e-5)
            return top, left, flipped
    raise AssertionError("it is no crop of the padded picture")
