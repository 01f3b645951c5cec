"""Names of `dt.train` that only programs of TensorFlow 1 use: input by queues, the `Supervisor`, averages, warm starts, schedules."""

from ..queues.input import (
    batch,
    batch_join,
    input_producer,
    limit_epochs,
    maybe_batch,
    maybe_batch_join,
    maybe_shuffle_batch,
    maybe_shuffle_batch_join,
    range_input_producer,
    shuffle_batch,
    shuffle_batch_join,
    slice_input_producer,
    string_input_producer,
)
from ..sessions.supervisor import Supervisor, basic_train_loop
from ..training.learning_rates import (
    cosine_decay_restarts,
    inverse_time_decay,
    linear_cosine_decay,
    natural_exp_decay,
    noisy_linear_cosine_decay,
    piecewise_constant,
    piecewise_constant as piecewise_constant_decay,
    polynomial_decay,
)
from ..training.moving_averages import ExponentialMovingAverage
from ..training.optimizers import (
    AdagradDAOptimizer,
    ProximalAdagradOptimizer,
    ProximalGradientDescentOptimizer,
)
from ..training.warm_starting import VocabInfo, init_from_checkpoint, warm_start
