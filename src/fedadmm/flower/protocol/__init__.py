"""The protocol between server and sites, as pure functions without disk, network or clock."""
