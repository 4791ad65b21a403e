from __future__ import annotations

import math

import pytest
import torch

from hookbus_guards.invalid_loss import check_finite, extract_loss_terms, format_terms

INF, NAN = math.inf, math.nan


class TestExtractLossTerms:
    def test_terms_are_values_named_loss_with_the_total_first(self) -> None:
        outputs = {"loss_cls": 1.0, "accuracy": NAN, "loss": 3.0, "boxLoss": torch.tensor(2.0), "logits": torch.ones(2)}

        assert list(extract_loss_terms(outputs)) == ["loss", "loss_cls", "boxLoss"]

    def test_terms_are_extracted_from_nested_mappings_and_lists(self) -> None:
        outputs = {"losses": {"box": torch.ones(2), "cls": 0.5}, "loss_aux": [1.0, (2.0, 3)]}

        assert list(extract_loss_terms(outputs)) == [
            "losses.box",
            "losses.cls",
            "loss_aux.0",
            "loss_aux.1.0",
            "loss_aux.1.1",
        ]

    def test_all_scalars_are_terms_if_no_name_contains_loss(self) -> None:
        outputs = {
            "cls": 0.3,
            "box": torch.tensor([2.0]),
            "logits": torch.ones(2),
            "count": 3,
            "done": True,
            "name": "x",
        }

        assert list(extract_loss_terms(outputs)) == ["cls", "box", "count"]

    def test_scalar_outputs_are_the_loss(self) -> None:
        assert extract_loss_terms(0.5) == {"loss": 0.5}

    def test_separate_loss_replaces_the_loss_of_the_outputs(self) -> None:
        assert extract_loss_terms({"loss": 1.0, "loss_a": 2.0}, 5.0) == {"loss": 5.0, "loss_a": 2.0}
        assert extract_loss_terms(None, 5.0) == {"loss": 5.0}

    @pytest.mark.parametrize("outputs", [None, {}, {"logits": torch.ones(3)}, {"n": torch.tensor(3)}, {"loss": []}])
    def test_outputs_without_numbers_have_no_terms(self, outputs: object) -> None:
        assert extract_loss_terms(outputs) == {}


class TestCheckFinite:
    @pytest.mark.parametrize("bad", [INF, -INF, NAN])
    def test_any_term_that_is_not_finite_is_detected(self, bad: float) -> None:
        assert check_finite({"loss": 1.5, "a": torch.tensor(0.25)}) == (True, 1.5)
        assert check_finite({"loss": 1.5, "a": torch.tensor([0.25, bad])}) == (False, 1.5)
        assert check_finite({"loss": torch.tensor(1.5), "a": bad}) == (False, 1.5)

    def test_sum_of_large_finite_terms_is_finite(self) -> None:
        largest = torch.tensor(torch.finfo(torch.float32).max)

        assert check_finite({"loss": largest, "a": largest})[0]

    def test_infinities_of_opposite_sign_are_detected(self) -> None:
        assert not check_finite({"loss": torch.tensor(INF), "a": torch.tensor(-INF)})[0]


class TestFormatTerms:
    def test_values_that_are_not_finite_are_first(self) -> None:
        outputs = {"loss": torch.tensor(INF), "cls": torch.tensor(0.3), "box": INF, "logits": torch.ones(3)}

        assert format_terms(outputs) == "box is inf; loss is inf; cls is 0.3"

    def test_tensors_are_named_only_if_they_are_not_finite(self) -> None:
        assert (
            format_terms({"loss_each": torch.tensor([1.0, NAN]), "logits": torch.ones(2)}, 2.0)
            == "loss_each is nan; loss is 2"
        )
