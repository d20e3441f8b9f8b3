"""What is on disk, and how it gets there exactly once."""
