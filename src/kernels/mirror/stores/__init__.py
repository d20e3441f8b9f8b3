"""Where a mirror's tree lies: a folder, or an object store."""
