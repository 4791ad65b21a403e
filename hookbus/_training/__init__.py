"""Training and evaluation of the Trainer.

* Training iterations: `steps`, `lr_scheduler`.
* Evaluation: `evaluation`, `eval_metrics`.
* Distributed training: `parallel`.
"""
