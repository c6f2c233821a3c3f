"""Induction circuits: built by hand, learned small, and found in real models.

The hand-built ones: start with `interp.circuits.built`; `interp.build_circuit` makes one.
"""
