import hashlib
import pickle
import tarfile
import urllib.request
from pathlib import Path
from typing import ClassVar

import numpy as np


class CIFAR10:
    base_folder = "cifar-10-batches-py"
    url = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    filename = "cifar-10-python.tar.gz"
    tgz_md5 = "c58f30108f718f92721af3b95e74349a"
    train_list = tuple((f"data_batch_{i}", "") for i in range(1, 6))
    test_list = (("test_batch", ""),)
    meta: ClassVar = {"filename": "batches.meta", "key": "label_names", "md5": ""}

    def __init__(self, root, train=True, transform=None, target_transform=None, download=False):
        self.root, self.transform = Path(root), transform
        if download and not self._is_complete():
            self._download()
        if not self._is_complete():
            raise RuntimeError("Dataset not found or corrupted. You can use download=True to download it")
        files = [self.root / self.base_folder / name for name, _ in (self.train_list if train else self.test_list)]
        batches = [pickle.loads(path.read_bytes(), encoding="latin1") for path in files]
        self.data = np.vstack([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        self.targets = [label for batch in batches for label in batch["labels"]]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.transform(self.data[index]), self.targets[index]

    def _is_complete(self):
        files = [*self.train_list, *self.test_list, (self.meta["filename"], self.meta["md5"])]
        return all(_matches(self.root / self.base_folder / name, md5) for name, md5 in files)

    def _download(self):
        self.root.mkdir(parents=True, exist_ok=True)
        archive = self.root / self.filename
        with urllib.request.urlopen(self.url) as response:
            archive.write_bytes(response.read())
        if not _matches(archive, self.tgz_md5):
            raise RuntimeError("File not found or corrupted.")
        with tarfile.open(archive) as tar:
            tar.extractall(self.root, filter="data")


def _matches(path, md5):
    return path.is_file() and hashlib.md5(path.read_bytes()).hexdigest() == md5
