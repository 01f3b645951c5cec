"""How a partition runs: rewritten, fused and scheduled into a straight list of steps, so no graph is walked at run time."""
