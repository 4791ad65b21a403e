import torch

from hookbus_tensorboard.inputs import find_images, get_model_arguments, subsample


def test_model_arguments_exclude_the_targets():
    assert get_model_arguments(("a", "b", "targets")) == (("a", "b"), {})
    assert get_model_arguments(["a"]) == (("a",), {})
    assert get_model_arguments("a") == (("a",), {})
    assert get_model_arguments({"x": 1}) == ((), {"x": 1})


def test_values_outside_0_to_1_are_rescaled():
    (image,) = find_images(torch.tensor([-1.0, 0.0, 3.0, 1.0]).reshape(1, 1, 2, 2), 8)
    assert image.flatten().tolist() == [0.0, 0.25, 1.0, 0.5]


def test_first_images_of_the_first_image_tensor_are_returned():
    batch = {"ids": torch.zeros(5), "image": torch.ones(5, 3, 4, 4), "mask": torch.zeros(5, 1, 4, 4)}
    assert [tuple(image.shape) for image in find_images(batch, 2)] == [(3, 4, 4)] * 2
    assert find_images([torch.zeros(2, 5, 6, 7)], 2) == []


def test_large_tensor_is_subsampled_evenly():
    assert subsample(torch.arange(65536.0)).tolist() == list(range(65536))
    assert subsample(torch.arange(65537.0)).tolist() == list(range(0, 65537, 2))
    assert subsample(torch.zeros(0)).numel() == 0
