"""The papers' tables and figures that were run again, and the page of their results."""
