"""What looks wrong in a training, and what to try: rules over its events, with their advice."""
