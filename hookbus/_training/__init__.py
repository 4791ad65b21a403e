"""Training, evaluation and data loading of the Trainer.

* Data and random number generators: `data`, `loaders`, `seeding`, `rng`, `train_shard`, `eval_shard`, `workers`.
* Training iterations: `steps`, `batches`, `outputs`, `optimizer`, `scheduling`.
* Evaluation: `evaluation`, `scores`, `metric_states`.
* Distributed training: `parallel`.
"""
