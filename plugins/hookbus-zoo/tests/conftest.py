"""A small CIFAR-10, and a torchvision to read it."""

from __future__ import annotations

import hashlib
import importlib
import pickle
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

FOLDER = "cifar-10-batches-py"
STAND_IN = Path(__file__).parent / "stand_in"


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return `torchvision.datasets`, or a stand-in with the same behavior if torchvision cannot be imported."""
    try:
        yield importlib.import_module("torchvision.datasets")
    except Exception:
        _unload_torchvision()
        monkeypatch.syspath_prepend(STAND_IN)
        yield importlib.import_module("torchvision.datasets")
        _unload_torchvision()


def _unload_torchvision() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


class SmallCifar:
    """The files of CIFAR-10 in the published format, with two images in each batch instead of 10,000.

    A batch is a pickled dictionary. Its `data` has a row of 3,072 bytes per image: 1,024 red bytes in row-major order,
    then the green and the blue ones.

    Attributes:
        data: Array of each batch, uint8 of shape (2, 3072).
        labels: Labels of each batch.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
        random = np.random.default_rng(0)
        self.data = {name: random.integers(1, 256, (2, 3072), dtype=np.uint8) for name in names}
        self.labels = {name: [i, i + 1] for i, name in enumerate(names)}

    def write(self) -> None:
        """Write the unpacked archive."""
        (self.root / FOLDER).mkdir(parents=True)
        for name in self.data:
            self._dump(name, {"data": self.data[name], "labels": self.labels[name]})
        self._dump("batches.meta", {"label_names": ["airplane", "automobile"]})

    def _dump(self, name: str, content: dict[str, Any]) -> None:
        (self.root / FOLDER / name).write_bytes(pickle.dumps(content, protocol=2))

    def pack(self, path: Path) -> None:
        """Write the archive."""
        with tarfile.open(path, "w:gz") as archive:
            archive.add(self.root / FOLDER, FOLDER)

    def patch_checksums(self, monkeypatch: pytest.MonkeyPatch, datasets: Any) -> None:
        """Replace the checksums in torchvision by those of these files."""
        dataset = datasets.CIFAR10
        sums = {path.name: md5(path) for path in (self.root / FOLDER).iterdir()}
        monkeypatch.setattr(dataset, "train_list", [[name, sums[name]] for name, _ in dataset.train_list])
        monkeypatch.setattr(dataset, "test_list", [[name, sums[name]] for name, _ in dataset.test_list])
        monkeypatch.setattr(dataset, "meta", {**dataset.meta, "md5": sums["batches.meta"]})


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture
def small_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torchvision: Any) -> SmallCifar:
    """Return a small CIFAR-10 in `tmp_path/data`."""
    dataset = SmallCifar(tmp_path / "data")
    dataset.write()
    dataset.patch_checksums(monkeypatch, torchvision)
    return dataset


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Return the URL of a local server of the files in `tmp_path/published`."""
    (tmp_path / "published").mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "published"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http_server:
        thread = Thread(target=http_server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http_server.server_port}"
        http_server.shutdown()
        thread.join()
