"""What runs at the server: tasks out, replies judged and folded, everything checkpointed."""
