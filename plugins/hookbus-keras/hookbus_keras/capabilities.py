"""What `keras.Model.fit` with the torch backend offers to hooks. This module does not import Keras."""

from __future__ import annotations

from hookbus.bridge import Capabilities

_TRUNCATED = "also emitted for an epoch that a stop has truncated, because `fit` validates it"
_GRADIENTS = (
    "gradients are those of the micro-batch alone, because Keras clips and accumulates copies of them; with "
    "mixed_float16 they are multiplied by the loss scale"
)

CAPABILITIES = Capabilities(
    host="Keras",
    bridge="hookbus_keras.bridge:KerasBridge",
    approximate={
        "after_backward": f"emitted when the optimizer receives the gradients; {_GRADIENTS}",
        "before_optimizer_step": _GRADIENTS,
        "after_train_iter": _GRADIENTS,
        "before_val": _TRUNCATED,
        "after_val": _TRUNCATED,
    },
    requests={"stop": "iteration", "skip": "now"},
    modules=False,
    optimizer=False,
    checkpoints=("host", "hookbus"),
    step="an update of the optimizer, after `gradient_accumulation_steps` batches",
)
