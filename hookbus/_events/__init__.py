"""Implementation of the event bus: validation of plugins, order of listeners, and compilation of points.

`bus` defines `EventBus`. `points` and `markers` declare points and mark implementations. `checks`, `registry`,
`manager` and `listeners` validate and register a plugin and read its implementations. `ordering`, `codegen`, `table`
and `schedule_gate` compile one function per point; `schedules`, with `schedule_parser`, determines when a listener is
due. `actions` builds the steps that hooks replace or wrap. `call_stack` finds the running listener. `failures` applies
the policy for hooks that raise an exception, with `failure_records`. `explain` and `instrumentation` are for inspection
and profiling.

These modules do not import the run, `Hook`, torch or pydantic. `HookBus` passes the statements, default arguments and
emitter wrappers with which a run responds to its points.
"""
