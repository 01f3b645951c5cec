"""Reverse-mode differentiation of graphs.

- `reverse`: `gradients`. It visits nodes from last to first and applies each op's rule.
- `control_flow`: the gradients of branches and loops.
- `custom`: rules that a program defines.

An op's rule is defined with the op. A rule that needs ops of later modules is defined there, and added by `opdef.set_gradient`.

`tensorflow` and what is above `graph` may import it.
"""
