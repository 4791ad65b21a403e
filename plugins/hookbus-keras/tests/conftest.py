"""Settings of Keras in the tests of this package."""

import os
from importlib.util import find_spec

os.environ.setdefault("KERAS_BACKEND", "torch")  # read when Keras is imported

if find_spec("keras") is not None:
    import keras

    keras.config.disable_traceback_filtering()  # which replaces the exceptions of layers
