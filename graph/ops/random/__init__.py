"""Random numbers by Philox, a counter-based generator. The numbers depend only on a key and a counter, not on where the node runs.

random             random ops of TensorFlow 1, whose counter is the node's run number in the session
stateless_random   random ops whose seed is a tensor; the ops that the compiler splits random ops into
random_common      seeds, operands and costs that both share

Whatever is above `graph/ops` may import it, and other families of ops.
"""
