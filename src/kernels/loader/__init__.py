"""A folder of a variant becomes a module."""
