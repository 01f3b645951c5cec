"""Optimizers and what goes with them.

`rules` is the table of formulas; `optimizer` is the base class, which computes gradients and applies them. One module per family:
`gradient_descent` (plain, with momentum; FTRL), `adagrad` (Adagrad, Adadelta, RMSProp), `adam`, `large_batch` (LARS, LAMB).
`slot_creator` makes the slots of a variable, `learning_rate_decay` has schedules, `loss_scale` is for float16.
`train` and `compat` may import it.
"""
