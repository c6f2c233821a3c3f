"""Attention explained with numbers that are measured, and a lab to play with."""
