"""Construction of a Trainer from a run file, and validation of a Trainer before training."""
