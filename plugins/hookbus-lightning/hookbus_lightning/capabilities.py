"""What Lightning offers to hooks. Neither Lightning nor torch is imported."""

from hookbus.bridge import Capabilities

TRAINER = Capabilities(
    host="Lightning",
    bridge="hookbus_lightning.bridge:LightningBridge",
    approximate={
        "after_forward": (
            "in manual optimization emitted at each manual_backward, with the loss passed to it, without outputs"
        ),
        "after_backward": "in manual optimization emitted at each manual_backward",
        "after_train_epoch": (
            "emitted before a validation at the end of the epoch and before on_train_epoch_end of the module, so that "
            "the values logged there are missing"
        ),
        "before_val": "after a stop request within an epoch, Lightning validates the truncated epoch",
    },
    requests={"stop": "iteration", "save": "now", "validation": "now"},
    checkpoints=("host", "hookbus"),
    step="a step of an optimizer, as trainer.global_step with one optimizer",
)
"""`lightning.Trainer` and `pytorch_lightning.Trainer`."""

_PARTIAL = "emitted by fabric.backward with the loss that the loop passes, without the batch and the outputs"
_VALIDATION = "emitted if the validation function of the loop emits it"

FABRIC = Capabilities(
    host="Fabric",
    bridge="hookbus_lightning.fabric:FabricBridge",
    approximate={
        "after_forward": _PARTIAL,
        "after_backward": _PARTIAL,
        "before_val_iter": _VALIDATION,
        "after_val_iter": _VALIDATION,
    },
    requests={"stop": "iteration", "stop_epoch": "iteration", "validation": "now", "skip": "iteration"},
    data=True,
    checkpoints=("host", "hookbus"),
    step="a step of an optimizer that Fabric has set up",
)
"""`lightning.Fabric` and `lightning_fabric.Fabric`."""
