"""What executes kernels: one module per kind of device, all behind one small interface."""
