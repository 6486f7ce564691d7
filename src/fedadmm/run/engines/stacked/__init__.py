"""Many clients as one computation: stacked rows, parameters and gradients."""
