"""Gong's Table III at the paper's size."""
