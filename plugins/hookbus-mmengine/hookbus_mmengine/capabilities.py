"""What the Runner of MMEngine offers to hooks. Imports neither MMEngine nor torch."""

from hookbus.bridge import Capabilities

CAPABILITIES = Capabilities(
    host="MMEngine",
    bridge="hookbus_mmengine.bridge:MMEngineBridge",
    approximate={
        "after_forward": "it is emitted at optim_wrapper.update_params, with the loss and without the outputs.",
        "after_backward": "with AmpOptimWrapper the gradients are scaled, and the outputs are not passed.",
        "after_train_iter": "after an optimizer step the gradients are zero: update_params zeroes them.",
        "after_train_epoch": "IterBasedTrainLoop has a single epoch, which is the whole training.",
        "after_epoch": "a run that resumes from the checkpoint of an epoch does not emit it again for this epoch.",
        "before_save_checkpoint": "the checkpoint contains what hookbus adds to that of the Runner, without weights.",
        "after_load_checkpoint": "the checkpoint contains what hookbus has added to that of the Runner.",
    },
    requests={
        "stop": "iteration",
        "stop_epoch": "iteration",
        "save": "now",
        "validation": "now",
        "skip": "now",
    },
    gradients=("after_backward", "before_optimizer_step"),
    checkpoints=("host", "hookbus"),
)
