"""Pages of heads for a browser: one self-contained HTML file, and a still picture of it."""
