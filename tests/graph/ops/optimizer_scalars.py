"""Numbers that the rules of optimizers take, for tests of the reference and of compiled kernels."""

SCALARS = {
    "l2_shrinkage": 0.1, "lr_power": -0.6, "global_step": 3.0, "alpha": 0.5, "lr": 0.5, "momentum": 0.9,
    "rho": 0.9, "epsilon": 0.01, "beta1": 0.9, "beta2": 0.99, "beta1_power": 0.9, "beta2_power": 0.99,
    "weight_decay": 0.1, "l1": 0.1, "l2": 0.2,
}  # fmt: skip
