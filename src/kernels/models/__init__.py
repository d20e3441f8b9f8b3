"""Data alone: parsed from text and written to it, checked, and known by every other package."""
