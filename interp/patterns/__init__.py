"""Attention patterns from any source, and the labels of their heads."""
