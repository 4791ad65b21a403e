import pytest
import torch

from hookbus_visualization.attribution import extract_scores, make_leaf, select_classes

SCORES = torch.tensor([[0.1, 0.9, 0.0], [0.8, 0.1, 0.1]])


class TestScores:
    @pytest.mark.parametrize(
        "outputs", [SCORES, {"loss": torch.ones(()), "logits": SCORES}, {"output": SCORES}, (SCORES, None), [SCORES]]
    )
    def test_scores_are_found_in_usual_model_outputs(self, outputs):
        assert extract_scores(outputs) is SCORES

    def test_one_number_per_sample_is_one_class(self):
        assert torch.equal(extract_scores(torch.ones(3)), torch.ones(3, 1))

    @pytest.mark.parametrize(
        ("outputs", "description"),
        [
            (torch.ones(2, 3, 4, 4), "Tensor of shape (2, 3, 4, 4)"),
            (torch.ones(()), "Tensor of shape ()"),
            ({"boxes": SCORES}, "{boxes: Tensor of shape (2, 3)}"),
            ((), "()"),
            ("text", "str"),
        ],
    )
    def test_outputs_without_scores_raise_value_error(self, outputs, description):
        with pytest.raises(ValueError, match=r"class scores of shape \(N, C\)") as error:
            extract_scores(outputs)
        assert str(error.value).endswith(f"got {description}.")


class TestClasses:
    def test_predicted_classes_are_the_default(self):
        assert select_classes(SCORES, None).tolist() == [1, 0]

    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
    def test_targets_are_converted_to_int64(self, dtype):
        classes = select_classes(SCORES, torch.tensor([2, 0], dtype=dtype))
        assert classes.tolist() == [2, 0]
        assert classes.dtype == torch.int64

    def test_single_class_ignores_the_targets(self):
        assert select_classes(SCORES[:, :1], torch.tensor([1.0, 0.3])).tolist() == [0, 0]

    @pytest.mark.parametrize(
        ("targets", "description"),
        [
            ([0, 3], "torch.int64 of shape (2,) from 0 to 3"),
            ([-1, 0], "torch.int64 of shape (2,) from -1 to 0"),
            ([0.0, 1.0], "torch.float32 of shape (2,) from 0.0 to 1.0"),
            ([0, 1, 2], "torch.int64 of shape (3,) from 0 to 2"),
        ],
    )
    def test_invalid_targets_raise_value_error(self, targets, description):
        with pytest.raises(ValueError, match=r"class indices of shape \(2,\) from 0 to 2") as error:
            select_classes(SCORES, torch.tensor(targets))
        assert str(error.value).endswith(f"got {description}.")


class TestLeaves:
    def test_gradients_accumulate_in_the_leaf(self):
        tensor = torch.ones(2)
        inputs, leaf = make_leaf(tensor)
        (3 * inputs).sum().backward()
        assert leaf.grad.tolist() == [3.0, 3.0]
        assert not tensor.requires_grad

    def test_first_floating_point_tensor_is_the_leaf(self):
        inputs, leaf = make_leaf({"ids": torch.tensor([1]), "x": torch.ones(1), "y": torch.zeros(1)})
        assert [tensor.requires_grad for tensor in inputs.values()] == [False, True, False]
        assert leaf.tolist() == [1.0]

    def test_model_may_modify_the_inputs_in_place(self):
        inputs, leaf = make_leaf(torch.ones(2))
        inputs.mul_(5).sum().backward()
        assert leaf.grad.tolist() == [5.0, 5.0]

    def test_inference_tensors_are_accepted(self):
        with torch.inference_mode():
            batch = torch.ones(2)
        inputs, leaf = make_leaf(batch)
        (inputs**2).sum().backward()
        assert leaf.grad.tolist() == [2.0, 2.0]

    def test_integer_inputs_raise_value_error(self):
        with pytest.raises(ValueError, match="require a floating-point input"):
            make_leaf((torch.tensor([1, 2]), "text"))
