"""What is on disk: run folders, checkpoints, and who reads them."""
