"""What papers claim, and what networks learn."""
