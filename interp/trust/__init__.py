"""Validation: planted heads, accuracy, sensitivity, published heads."""
