"""Behind the bus: what is checked before a hook is let in, in which order listeners are called, and how fast.

`checks`, `members` and `listeners` let a plugin in and read what it implements; `declaring` knows the points;
`compiling`, `table` and `due` turn both into one function per point; `emitting` stands behind `bus.emit`; `failures`
says what becomes of a hook that raises; `explain` and `trace` show all of it to people.
"""
