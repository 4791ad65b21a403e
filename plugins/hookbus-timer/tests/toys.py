"""Helpers that the tests of multiple hooks share."""

from hookbus import Hook


class ScalarRecorder(Hook):
    """Store all logged scalars with their step."""

    def __init__(self):
        super().__init__()
        self.records = []

    def log_scalars(self, values, step):
        self.records.append((step, dict(values)))
