"""Training as old programs do it: `moving_averages` keeps averages of variables, `warm_starting` starts a model from another model's
checkpoint, `learning_rates` and `optimizers` have those that only old programs use.

`contrib`, `estimator`, `keras` and `names` import it.
"""

from . import moving_averages as moving_averages, warm_starting as warm_starting
