"""A kernel's source folder: its files, their hashes, its git state, and the folders beside it."""
