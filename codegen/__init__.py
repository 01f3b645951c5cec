"""How a partition runs: rewritten, fused, scheduled into a list of steps; run time walks no graph."""
