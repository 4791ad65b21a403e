"""The Trainer: construction, validation before training, and the training loop.

* Training: `trainer`, `runs`, `initial_weights`.
* Construction: `setup`, `arguments`, `from_file`.
* Validation before training: `checking`, `preconditions`.
"""
