import pytest
import torch

from hookbus_visualization.scores import class_indices, leaves, scores_of

SCORES = torch.tensor([[0.1, 0.9, 0.0], [0.8, 0.1, 0.1]])


class TestScores:
    @pytest.mark.parametrize(
        "outputs", [SCORES, {"loss": torch.ones(()), "logits": SCORES}, {"output": SCORES}, (SCORES, None), [SCORES]]
    )
    def test_are_found_among_the_usual_things_that_models_return(self, outputs):
        assert scores_of(outputs) is SCORES

    def test_of_one_number_for_each_sample_are_one_class(self):
        assert torch.equal(scores_of(torch.ones(3)), torch.ones(3, 1))

    @pytest.mark.parametrize(
        ("outputs", "what"),
        [
            (torch.ones(2, 3, 4, 4), "Tensor of shape (2, 3, 4, 4)"),
            (torch.ones(()), "Tensor of shape ()"),
            ({"boxes": SCORES}, "{boxes: Tensor of shape (2, 3)}"),
            ((), "()"),
            ("text", "str"),
        ],
    )
    def test_that_are_not_there_are_asked_for(self, outputs, what):
        with pytest.raises(ValueError, match=r"shape \(samples, classes\)") as error:
            scores_of(outputs)
        assert str(error.value).endswith(f"these are {what}.")


class TestClasses:
    def test_are_those_that_are_predicted(self):
        assert class_indices(SCORES, None).tolist() == [1, 0]

    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
    def test_are_the_targets_where_they_are_given(self, dtype):
        classes = class_indices(SCORES, torch.tensor([2, 0], dtype=dtype))
        assert classes.tolist() == [2, 0]
        assert classes.dtype == torch.int64

    def test_are_the_only_one_there_is_whatever_the_targets(self):
        assert class_indices(SCORES[:, :1], torch.tensor([1.0, 0.3])).tolist() == [0, 0]

    @pytest.mark.parametrize(
        ("targets", "what"),
        [
            ([0, 3], "torch.int64 of shape (2,) from 0 to 3"),
            ([-1, 0], "torch.int64 of shape (2,) from -1 to 0"),
            ([0.0, 1.0], "torch.float32 of shape (2,) from 0.0 to 1.0"),
            ([0, 1, 2], "torch.int64 of shape (3,) from 0 to 2"),
        ],
    )
    def test_that_the_model_does_not_have_are_refused(self, targets, what):
        with pytest.raises(ValueError, match="3 classes, one for each of 2 samples") as error:
            class_indices(SCORES, torch.tensor(targets))
        assert str(error.value).endswith(f"not {what}.")


class TestLeaves:
    def test_are_what_the_inputs_are_copied_from(self):
        given = torch.ones(2)
        inputs, leaf = leaves(given)
        (3 * inputs).sum().backward()
        assert leaf.grad.tolist() == [3.0, 3.0]
        assert not given.requires_grad

    def test_are_the_first_numbers_with_a_point(self):
        inputs, leaf = leaves({"ids": torch.tensor([1]), "x": torch.ones(1), "y": torch.zeros(1)})
        assert [each.requires_grad for each in inputs.values()] == [False, True, False]
        assert leaf.tolist() == [1.0]

    def test_may_be_changed_in_place_by_the_model(self):
        inputs, leaf = leaves(torch.ones(2))
        inputs.mul_(5).sum().backward()
        assert leaf.grad.tolist() == [5.0, 5.0]

    def test_can_be_made_of_a_batch_of_a_validation(self):
        with torch.inference_mode():
            batch = torch.ones(2)
        inputs, leaf = leaves(batch)
        (inputs**2).sum().backward()
        assert leaf.grad.tolist() == [2.0, 2.0]

    def test_are_not_to_be_had_of_whole_numbers(self):
        with pytest.raises(ValueError, match="floating-point inputs only"):
            leaves((torch.tensor([1, 2]), "text"))
