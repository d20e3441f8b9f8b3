"""What users ask for, from the call to its result: load, download, lock, verify, info, mirror."""
