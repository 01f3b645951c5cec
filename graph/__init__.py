"""What a graph is: nodes that compute, tensors that flow between them, and the rules by which both are made and read."""
