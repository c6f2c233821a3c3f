"""One model's table of heads: probes, scores, and the table itself."""
