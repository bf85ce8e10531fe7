"""What of a library matters that its loader never asks for."""
