"""RUNNING: the one loop and the folder it writes."""
