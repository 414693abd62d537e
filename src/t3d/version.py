"""The one place that names the version; pyproject.toml reads it from here."""

__version__ = "0.5.0"
