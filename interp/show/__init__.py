"""Figures for print and pages for the browser."""
