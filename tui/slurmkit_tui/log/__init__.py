"""Reading logs of any size: only what is on the screen is read."""
