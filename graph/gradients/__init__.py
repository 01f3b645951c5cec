"""Reverse-mode differentiation of graphs.

- `reverse`: `gradients`. It visits nodes from last to first and asks each op's rule.
- `control_flow`: the gradients of branches and loops.
- `custom`: rules that a program gives itself, and second derivatives.

An op's rule stands with the op. A rule that needs ops of later modules stands there, and adds itself by `opdef.set_gradient`.
"""
