"""The ways in which a vendor's backend joins: an installed package, a JSON file, a folder."""

__all__: list[str] = []
