"""Which method needs the fewest rounds when few clients take part?  See README.md."""
