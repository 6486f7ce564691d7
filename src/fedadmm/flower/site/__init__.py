"""The site: its client app, its policy, and the state on its own disk."""
