"""One run: its state, the requests of hooks, the setup and the teardown.

`run` defines the run that hooks receive, and `run_bus` the bus that emits its events. `session` contains the context
managers of a run, with `preconditions`, `resume`, `interrupts` and `finalize`. `clock` counts, and `point_counters` is
the view of the clock from a point. `point_effects` lists what the run executes at a point, `emit_overloads` the types
of `bus.emit`, and `nesting` emits the points that a custom loop omits. `requests` processes the requests of hooks, with
`request_methods` and `request_sync`, and `boundary_state` restores the last iteration for a save after a failure.
`training_data` is the position in the training data, with `data_passes`, `pass_list` and `loader_pool`, and
`train_batch_size` a changed batch size. The other modules are parts of the run: `optimizer_steps`, `results`,
`services`, `validation`, `weights`, and `work_dir` with `directory_lock`, `status`, `recorded_run` and `acquisition`.

Some parts take the run as `Any`: with the type `Run` itself, all of these modules would depend on each other.
"""
