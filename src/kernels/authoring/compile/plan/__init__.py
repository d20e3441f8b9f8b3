"""What a build does, decided before anything runs: variants, sections, compiler steps."""
