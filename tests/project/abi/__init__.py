"""Compares the driver's ABI as this package declares it with the official cuda.h."""
