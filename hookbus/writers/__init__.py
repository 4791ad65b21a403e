"""Writer hooks: the base class, its queue and thread, and the conversion of values for backends."""
