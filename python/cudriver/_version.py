__version__ = "1.0.0"  # the one place: pyproject.toml reads it from here
ADDRESS = ""  # the repository's, https://...: the one place, empty until there is one
