"""How each framework loads its libraries: by its recipe, or by the general rule without one."""
