"""The environment: its Python and that Python's path, what is installed, who brought which file."""
