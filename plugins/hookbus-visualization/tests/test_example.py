"""A typical run file with hooks of many packages, including image hooks."""

import pytest

from hookbus import Trainer

EXAMPLE = """
work_dir: run
seed: 0
model: {type: cnn, width: 4}
dataset: {type: digits, batch_size: 16}
optimizer: {type: AdamW, lr: 0.003}
metrics: [accuracy]
training: {epochs: 6}
default_hooks: false
hooks:
  - type: CheckpointHook
    interval: 1
    max_keep_ckpts: 3
    save_best: true
    best_metric: accuracy
    rule: greater

  - type: LoggerHook
    interval: 50

  - type: TensorBoardHook
    log_dir: tensorboard_logs
    interval: 100
    log_graph: true

  - type: EvalHook
    interval: 1
    save_best: true
    metric: accuracy

  - type: EarlyStoppingHook
    monitor: val_loss
    patience: 10
    mode: min
    restore_best_weights: true

  - type: EMAHook
    momentum: 0.9999
    warm_up: 500

  - type: VisualizationHook
    interval: 500
    max_samples: 8
    save: true
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_run_file_with_hooks_of_many_packages_trains_and_writes_images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(EXAMPLE)
    trainer = Trainer.from_file("run.yaml")
    trainer.fit()
    names = sorted(path.name for path in (tmp_path / "run/visualization/visualization").iterdir())
    assert names == [
        "train-predictions-step-00000500.png",
        *(f"val-predictions-step-{step:08}.png" for step in range(90, 541, 90)),
    ]
