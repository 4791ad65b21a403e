"""What the tests of several hooks share."""

from hookbus import Hook


class Writer(Hook):
    """Keeps every record of numbers, with its step."""

    def __init__(self):
        super().__init__()
        self.written = []

    def log_scalars(self, values, step):
        self.written.append((step, dict(values)))
