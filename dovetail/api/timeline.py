"""Step statistics as pictures, where TensorFlow's programs expect them.

TensorFlow's `from tensorflow.python.client import timeline` becomes `from dovetail import timeline`.
"""

from ..runtime.observability.timeline import DeviceStepStats, NodeExecStats, StepStats, Timeline

__all__ = ["DeviceStepStats", "NodeExecStats", "StepStats", "Timeline"]
