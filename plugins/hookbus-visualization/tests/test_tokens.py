import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hookbus_visualization.panel import RIGHT, WRONG
from hookbus_visualization.tokens import token_picture

from .toys import drawing


def test_tokens_flow_like_text_and_mistakes_are_crossed_out(golden):
    words = [*"abcde", "some", "longer", "words", "and", "a word that is much longer than a line has place for" * 2]
    golden("tokens", token_picture(words * 2, [True, False, None] * 5))


def test_those_without_place_are_counted(golden):
    golden("many_tokens", token_picture(range(10_000, 10_400)))


class TestTokenPicture:
    def test_marks_right_and_wrong(self):
        found = {tuple(pixel) for pixel in token_picture(["a", "b"], [True, True]).reshape(-1, 3).tolist()}
        assert RIGHT in found
        assert WRONG not in found

    @drawing
    @given(st.lists(st.text(max_size=60), max_size=200))
    def test_has_bounds_whatever_the_tokens_are(self, words):
        picture = token_picture(words)
        assert picture.dtype == np.uint8
        assert picture.shape[1:] == (320, 3)
        assert picture.shape[0] <= 320
