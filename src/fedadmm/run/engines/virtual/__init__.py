"""The parts of the virtual-time engine: how long work takes, who is at work, who computes it."""
