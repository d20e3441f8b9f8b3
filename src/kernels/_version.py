"""The version of this package; the distribution takes it from here."""

__version__ = "0.18.2"
