"""Layers of a network: models, and the blocks around them."""
