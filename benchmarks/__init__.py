"""How long a round takes, beside other frameworks: `python -m benchmarks` in a checkout."""
