"""Attention in plain torch: the reference, tiles, and many heads at once."""
