"""The compilers are run: steps, the objects that are kept, and what a failure means."""
