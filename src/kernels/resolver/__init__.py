"""What to load: decided before anything is downloaded."""
