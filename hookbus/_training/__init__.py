"""Training and evaluation of the Trainer.

* Training iterations: `steps`, `outputs`, `lr_scheduler`.
* Evaluation: `evaluation`, `eval_metrics`, `metric_sync`.
* Distributed training: `parallel`.
"""
