"""Contracts and components: objectives, solvers, samplers, the pipeline; imports no subpackage."""
