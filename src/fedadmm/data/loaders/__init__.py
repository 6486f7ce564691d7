"""One file for each format or data set."""
