"""Gradient inversion by an honest-but-curious server: what one client's updates reveal."""
