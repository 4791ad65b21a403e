from __future__ import annotations

import math

import pytest
import torch

from hookbus_guards.terms import describe, loss_terms, read

INF, NAN = math.inf, math.nan


class TestLossTerms:
    def test_are_everything_with_loss_in_its_name_the_loss_first(self) -> None:
        outputs = {"loss_cls": 1.0, "accuracy": NAN, "loss": 3.0, "boxLoss": torch.tensor(2.0), "logits": torch.ones(2)}

        assert list(loss_terms(outputs)) == ["loss", "loss_cls", "boxLoss"]

    def test_are_found_in_mappings_and_lists(self) -> None:
        outputs = {"losses": {"box": torch.ones(2), "cls": 0.5}, "loss_aux": [1.0, (2.0, 3)]}

        assert list(loss_terms(outputs)) == ["losses.box", "losses.cls", "loss_aux.0", "loss_aux.1.0", "loss_aux.1.1"]

    def test_are_all_single_numbers_where_none_is_called_a_loss(self) -> None:
        outputs = {
            "cls": 0.3,
            "box": torch.tensor([2.0]),
            "logits": torch.ones(2),
            "count": 3,
            "done": True,
            "name": "x",
        }

        assert list(loss_terms(outputs)) == ["cls", "box", "count"]

    def test_are_the_outputs_themselves_where_these_are_a_number(self) -> None:
        assert loss_terms(0.5) == {"loss": 0.5}

    def test_take_a_loss_that_is_given_apart(self) -> None:
        assert loss_terms({"loss": 1.0, "loss_a": 2.0}, 5.0) == {"loss": 5.0, "loss_a": 2.0}
        assert loss_terms(None, 5.0) == {"loss": 5.0}

    @pytest.mark.parametrize("outputs", [None, {}, {"logits": torch.ones(3)}, {"n": torch.tensor(3)}, {"loss": []}])
    def test_are_none_where_there_is_no_number(self, outputs: object) -> None:
        assert loss_terms(outputs) == {}


class TestRead:
    @pytest.mark.parametrize("bad", [INF, -INF, NAN])
    def test_finds_any_term_that_is_not_finite(self, bad: float) -> None:
        assert read({"loss": 1.5, "a": torch.tensor(0.25)}) == (True, 1.5)
        assert read({"loss": 1.5, "a": torch.tensor([0.25, bad])}) == (False, 1.5)
        assert read({"loss": torch.tensor(1.5), "a": bad}) == (False, 1.5)

    def test_is_not_misled_by_large_numbers(self) -> None:
        largest = torch.tensor(torch.finfo(torch.float32).max)

        assert read({"loss": largest, "a": largest})[0]

    def test_finds_infinities_that_cancel(self) -> None:
        assert not read({"loss": torch.tensor(INF), "a": torch.tensor(-INF)})[0]


class TestDescribe:
    def test_puts_first_what_is_not_finite(self) -> None:
        outputs = {"loss": torch.tensor(INF), "cls": torch.tensor(0.3), "box": INF, "logits": torch.ones(3)}

        assert describe(outputs) == "box is inf; loss is inf; cls is 0.3"

    def test_names_a_tensor_only_where_something_in_it_is_not_finite(self) -> None:
        assert (
            describe({"loss_each": torch.tensor([1.0, NAN]), "logits": torch.ones(2)}, 2.0)
            == "loss_each is nan; loss is 2"
        )
