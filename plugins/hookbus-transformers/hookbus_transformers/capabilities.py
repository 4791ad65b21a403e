"""What the Trainer of Hugging Face Transformers offers to hooks. This module does not import it."""

from __future__ import annotations

from hookbus.bridge import Capabilities

CAPABILITIES = Capabilities(
    host="Transformers Trainer",
    bridge="hookbus_transformers.bridge:TransformersBridge",
    approximate={
        "before_val": "with the strategy `epoch`, an epoch that a stop has truncated is validated as well",
        "after_train_epoch": "emitted for an epoch that a stop has truncated, before its validation",
    },
    requests={"stop": "step", "stop_epoch": "step", "save": "step", "validation": "step", "skip": "iteration"},
    step="an optimizer step; `state.global_step` also counts steps whose micro-batches were all skipped",
)
