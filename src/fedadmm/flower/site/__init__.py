"""A site: its app, and the state on its own disk."""
