"""What cudriver costs beside its peers and the driver itself: `python -m benchmarks --help`."""
