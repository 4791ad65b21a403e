"""Training and evaluation of the Trainer.

* Training iterations: `steps`, `outputs`, `lr_scheduler`.
* Evaluation: `evaluation`, `eval_metrics`.
* Distributed training: `parallel`.
"""
