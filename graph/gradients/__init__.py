"""Reverse-mode differentiation of graphs.

- `reverse`: `gradients`. It visits nodes from last to first, and applies each op's gradient rule.
- `control_flow`: the gradients of branches and loops.
- `custom`: rules that a program defines.

A gradient rule is defined with its op. If it needs ops of later modules, it is defined there and added by `opdef.set_gradient`.

`tensorflow` and packages outside `graph` may import this package.
"""
