"""Running a plan: tasks push tensors to each other as soon as they exist, and a dead peer ends the step, never hangs it."""
