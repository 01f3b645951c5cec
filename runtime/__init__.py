"""Running a plan: tasks push tensors as soon as they exist; a dead peer ends a step, never hangs it."""
