"""A client's loss as f_i on one flat vector."""
