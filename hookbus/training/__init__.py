"""What the Trainer is made of: steps, updates, schedulers, validation, and data in an order that can be taken up again.

`data`, `seeding`, `rng`, `dividing` and `sharing` are the data and its random streams; `steps`, `optimizer` and
`scheduling` one iteration; `evaluation`, `scores` and `combining` the judging; `parallel` the same with several
processes.
"""
