"""Read `build.toml`: its editions, its sections, and the rewrite of an older file to the current edition."""
