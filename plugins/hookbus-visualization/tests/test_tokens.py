import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hookbus_visualization.panel import CORRECT_COLOR, INCORRECT_COLOR
from hookbus_visualization.tokens import render_tokens

from .toys import render_settings


def test_tokens_with_marks_match_the_golden_image(golden):
    words = [*"abcde", "some", "longer", "words", "and", "a word that is much longer than a line has place for" * 2]
    golden("tokens", render_tokens(words * 2, [True, False, None] * 5))


def test_number_of_omitted_tokens_matches_the_golden_image(golden):
    golden("many_tokens", render_tokens(range(10_000, 10_400)))


class TestTokenPicture:
    def test_correct_tokens_have_only_correct_marks(self):
        colors = {tuple(pixel) for pixel in render_tokens(["a", "b"], [True, True]).reshape(-1, 3).tolist()}
        assert CORRECT_COLOR in colors
        assert INCORRECT_COLOR not in colors

    @render_settings
    @given(st.lists(st.text(max_size=60), max_size=200))
    def test_image_size_is_bounded_for_any_tokens(self, words):
        image = render_tokens(words)
        assert image.dtype == np.uint8
        assert image.shape[1:] == (320, 3)
        assert image.shape[0] <= 320
