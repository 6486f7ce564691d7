"""Deployments: processes on this machine, and projects for several machines."""
