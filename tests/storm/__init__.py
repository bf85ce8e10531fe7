"""The storm: random calls of the memory API against a model in NumPy. See README.md."""
