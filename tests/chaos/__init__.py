"""Random faults in real environments, and what the check says of them: `make chaos`."""
