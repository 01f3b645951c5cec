"""Optimizers, learning rate schedules and loss scaling.

- `optimizer`: the base class, which computes gradients and applies them. `rules`: the base of optimizers that apply one update rule.
- One module per family: `gradient_descent` (plain, with momentum; FTRL), `adagrad` (Adagrad, Adadelta, RMSProp), `adam`,
  `large_batch` (LARS, LAMB).
- `slot_creator`: creates the slots of a variable. `learning_rate_decay`: schedules. `loss_scale`: for training in float16.

`graph/ops/state/training.py` has the table of formulas. `train` and `compat` may import this package.
"""
