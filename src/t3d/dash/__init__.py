"""The dashboard's server: what is known of runs, as JSON for the pages; imports no torch."""
