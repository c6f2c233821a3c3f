"""Attention explained with measured numbers, and an interactive page."""
