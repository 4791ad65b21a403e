import numpy as np
import torch


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, picture):
        for each in self.transforms:
            picture = each(picture)
        return picture


class ToTensor:
    def __call__(self, picture):
        return torch.from_numpy(np.ascontiguousarray(picture.transpose(2, 0, 1))).float() / 255


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = (torch.tensor(each).view(-1, 1, 1) for each in (mean, std))

    def __call__(self, picture):
        return (picture - self.mean) / self.std


class RandomCrop:
    def __init__(self, size, padding):
        self.size, self.padding = size, padding

    def __call__(self, picture):
        padded = np.pad(picture, ((self.padding,) * 2, (self.padding,) * 2, (0, 0)))
        top, left = torch.randint(2 * self.padding + 1, (2,)).tolist()
        return padded[top : top + self.size, left : left + self.size]


class RandomHorizontalFlip:
    def __call__(self, picture):
        return picture[:, ::-1] if torch.rand(1) < 0.5 else picture
