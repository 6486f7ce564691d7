"""Studies that were made with the package; no part of it."""
