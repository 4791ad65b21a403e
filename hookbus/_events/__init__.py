"""Implementation of the event bus: validation of plugins, order of listeners, and compilation of points.

`checks`, `members` and `listeners` validate a plugin and read its implementations. `compiling`, `table` and `due`
compile one function per point. `emitting` implements `EventBus.emit`. `failures` applies the policy for hooks that
raise an exception, with `failure_counts` and `failure_notes`. `explain` and `trace` are for inspection and profiling.
These modules import neither the run nor `Hook`; `HookBus` passes `points` and `brackets`, which contain what a run does
at its points.
"""
