import torch

from hookbus_tensorboard.inputs import arguments_of, pictures_in, thinned


def test_model_arguments_exclude_the_targets():
    assert arguments_of(("a", "b", "targets")) == (("a", "b"), {})
    assert arguments_of(["a"]) == (("a",), {})
    assert arguments_of("a") == (("a",), {})
    assert arguments_of({"x": 1}) == ((), {"x": 1})


def test_values_outside_0_to_1_are_rescaled():
    (image,) = pictures_in(torch.tensor([-1.0, 0.0, 3.0, 1.0]).reshape(1, 1, 2, 2), 8)
    assert image.flatten().tolist() == [0.0, 0.25, 1.0, 0.5]


def test_first_images_of_the_first_image_tensor_are_returned():
    batch = {"ids": torch.zeros(5), "image": torch.ones(5, 3, 4, 4), "mask": torch.zeros(5, 1, 4, 4)}
    assert [tuple(image.shape) for image in pictures_in(batch, 2)] == [(3, 4, 4)] * 2
    assert pictures_in([torch.zeros(2, 5, 6, 7)], 2) == []


def test_large_tensor_is_subsampled_evenly():
    assert thinned(torch.arange(65536.0)).tolist() == list(range(65536))
    assert thinned(torch.arange(65537.0)).tolist() == list(range(0, 65537, 2))
    assert thinned(torch.zeros(0)).numel() == 0
