"""On the way to a back end: a hook that records, its queue, and values in the form that back ends take."""
