"""Rounds to a target against the participation rate: five methods, digits and MNIST."""
