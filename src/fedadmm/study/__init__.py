"""Experiments: one short file in, a run directory out.

config      TOML checked against the parts' own dataclasses, every default visible
runner      one experiment into one run directory
comparing   methods × seeds on the same problem
sweeping    a grid over any key
cells       finished results found again by the hash of their configuration
"""
