"""What a graph is: nodes that compute, tensors between them, and the rules that make and read both."""
