"""Secure aggregation by pairwise masking: messages, the server's sums, the sites' held uploads."""
