"""What everything stands on: roles, parts, objectives, solvers, samplers; imports nobody above."""
