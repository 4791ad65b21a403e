"""Program of one rank: train in two processes, with a hook that requests a stop on rank 1 alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from transformers import Trainer, TrainingArguments
from transformers.models.bert import BertConfig, BertForSequenceClassification

from hookbus import Hook, HookBus, Run
from hookbus_ema import EMAHook
from hookbus_transformers.bridge import TransformersBridge


class StopOnRankOne(Hook):
    """Request a stop on rank 1, in the third iteration."""

    def after_train_iter(self, run: Run) -> None:
        """Request the stop."""
        if run.ranks.rank == 1 and run.iters_done == 3:
            run.request_stop("enough")


def main(directory: Path) -> None:
    """Train, and write the result of this rank."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = BertForSequenceClassification(BertConfig(vocab_size=20, **sizes))
    samples = [{"input_ids": [index % 20] * 4, "labels": index % 2} for index in range(32)]
    args = TrainingArguments(
        str(directory / "host"),
        num_train_epochs=2,
        per_device_train_batch_size=2,
        eval_strategy="epoch",
        save_strategy="epoch",
        use_cpu=True,
        ddp_backend="gloo",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(model, args, train_dataset=samples, eval_dataset=samples)
    bridge = TransformersBridge(HookBus([StopOnRankOne(), EMAHook(momentum=0.5, warm_up=0)]), trainer)
    bridge.attach()
    trainer.train()
    run = bridge.active_run
    result = {
        "outcome": run.outcome,
        "iters": run.iters_done,
        "steps": trainer.state.global_step,
        "reasons": run.stop_reasons,
        "results": sorted(run.metrics.results),
    }
    (directory / f"rank_{run.ranks.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
