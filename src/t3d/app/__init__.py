"""PEOPLE: the command line."""
