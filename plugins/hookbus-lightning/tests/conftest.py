import os

os.environ.pop("COLUMNS", None)  # set by pytest-xdist; it would change the width of the output
