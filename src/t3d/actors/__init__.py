"""Who acts: this process, or others beside it."""
