"""The ops, one file per family: each is one `OpDef`, from which shape checks, kernels, gradients and costs all follow."""
