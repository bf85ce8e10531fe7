"""The machine: its driver and GPUs, or those that are assumed, its toolkits and its compilers."""
