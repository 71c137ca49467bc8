"""What do papers claim, and does it hold here? Claims are run in pieces, kept, and judged by one rule."""
