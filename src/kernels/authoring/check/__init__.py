"""Check a built kernel before it is published or used. `audit` has the steps in a row."""
