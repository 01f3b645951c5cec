"""Random numbers by Philox, a counter-based generator: key and counter give the numbers, wherever the node runs.

random             draws whose counter is the node's run number in the session
stateless_random   draws whose seed is a tensor; a draw in two steps, which compilers can fuse
random_common      seeds, operands and costs that both share

Whatever is above `graph/ops` may import it, and other families of ops.
"""
