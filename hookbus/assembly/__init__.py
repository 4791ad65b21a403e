"""From a run file to a Trainer: what its names stand for, and what would go wrong before anything is trained."""
