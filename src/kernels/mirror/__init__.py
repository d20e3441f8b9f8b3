"""A mirror's tree: its archives, its signatures, and the stores that hold it."""
