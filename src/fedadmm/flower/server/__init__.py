"""The server: sends tasks, validates and aggregates replies, writes checkpoints."""
