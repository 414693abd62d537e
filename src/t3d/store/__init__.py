"""Run folders and checkpoints on disk, and the reader of run folders."""
