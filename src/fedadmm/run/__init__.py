"""The only loop, one client's round, engines and state."""
