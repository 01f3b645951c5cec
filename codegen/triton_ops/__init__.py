"""GPU kernels of ops that are not loops over axes: random numbers, picking and adding rows, scans, sorting, optimisers' updates."""
