"""Helpers that the tests of multiple hooks share."""

from hookbus import Hook


class ScalarRecorder(Hook):
    """Store the scalars that hooks log with their step, without the results of validations."""

    def __init__(self):
        super().__init__()
        self.records = []

    def log_scalars(self, run, values, step):
        if run.log_source(values) is None:
            self.records.append((step, dict(values)))
