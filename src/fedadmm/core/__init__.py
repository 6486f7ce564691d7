"""What all rooms use: roles, parts, objectives, solvers, samplers; it imports no other room."""
