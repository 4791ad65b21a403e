import numpy as np
import torch

from hookbus_visualization.seen import Seen, first, predictions_in, seen_in, shapes

X, Y, P = torch.arange(12.0).reshape(4, 3), torch.arange(4), torch.ones(4, 2, requires_grad=True)


class TestSeenIn:
    def test_a_pair_it_is_inputs_and_targets(self):
        for batch in ((X, Y), [X, Y]):
            seen = seen_in(batch, {"loss": torch.tensor(1.0), "output": P})
            assert (seen.inputs is X, seen.images is X, seen.targets is Y, seen.predictions is P) == (True,) * 4

    def test_several_inputs_the_first_is_looked_at(self):
        seen = seen_in((X, P, Y), P)
        assert seen.inputs[0] is X
        assert seen.inputs[1] is P
        assert (seen.images is X, seen.targets is Y, seen.predictions is P) == (True,) * 3

    def test_a_mapping_it_goes_by_usual_keys(self):
        seen = seen_in({"pixel_values": X, "labels": Y, "mask": P}, {"logits": P})
        assert list(seen.inputs) == ["pixel_values", "labels", "mask"]
        assert (seen.images is X, seen.targets is Y, seen.predictions is P) == (True,) * 3

    def test_inputs_alone_there_is_no_truth(self):
        for batch in (X, (X,)):
            seen = seen_in(batch, None)
            assert (seen.inputs is X, seen.images is X, seen.targets, seen.predictions) == (True, True, None, None)

    def test_images_of_several_sizes_they_are_one_input(self):
        seen = seen_in(((X, X[:2]), ({"boxes": 1}, {"boxes": 2})), {})
        assert [len(each) for each in seen.inputs] == [4, 2]
        assert seen.inputs == seen.images
        assert seen.targets == ({"boxes": 1}, {"boxes": 2})


class TestPredictionsIn:
    def test_losses_alone_there_are_none(self):
        assert predictions_in({"loss": torch.tensor(1.0), "loss_box": 0.5}) is None
        assert predictions_in({}) is None

    def test_a_mapping_without_a_usual_key_are_all_of_it_but_the_losses(self):
        assert predictions_in({"loss": torch.tensor(1.0), "pred_boxes": P}) == {"pred_boxes": P}


class TestFirst:
    def test_takes_so_many_samples_without_their_graph(self):
        assert not first(P, 2).requires_grad
        assert first(X, 2).tolist() == X[:2].tolist()
        assert first(np.arange(5), 2).tolist() == [0, 1]
        assert first(("a", "b", "c"), 2) == ["a", "b"]
        assert {key: len(value) for key, value in first({"x": X, "y": [1, 2, 3]}, 2).items()} == {"x": 2, "y": 2}

    def test_leaves_what_has_no_samples(self):
        assert first(None, 2) is None
        assert first("text", 2) == "text"
        assert first(torch.tensor(3), 2).item() == 3

    def test_takes_them_of_every_part(self):
        seen = Seen(inputs=(X, P), images=X, targets=Y, predictions={"a": P}).first(3)
        assert [len(each) for each in (*seen.inputs, seen.images, seen.targets, seen.predictions["a"])] == [3] * 5


def test_shapes_are_told_in_words():
    batch = (torch.zeros(4, 3), {"labels": np.zeros(2), "name": "x"}, [1, 2, 3, 4])
    assert shapes(batch) == (
        "(Tensor of shape (4, 3), {labels: ndarray of shape (2,), name: str}, (int, int, int, and 1 more))"
    )
