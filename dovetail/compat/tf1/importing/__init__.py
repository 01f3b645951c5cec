"""Old programs, unchanged: `import tensorflow` gives Dovetail.

`dovetail tf1 train.py --flags` and `python -m dovetail.tf1 train.py --flags` run a program as `python train.py --flags` does, but
for that. A program or a notebook that Python has started in another way says, before it imports TensorFlow:

>>> import dovetail.tf1
>>> dovetail.tf1.install()
>>> import tensorflow as tf

`tensorflow`, `tensorflow.train`, `tensorflow.contrib.slim` are then the modules `dovetail`, `dovetail.train`, `dovetail.contrib.slim`
themselves. TensorFlow's inner modules (`tensorflow.python.framework.ops`) are made when they are imported and give the public names;
`compat.tf1.names.inner_modules` is the table.

`finder` gives the modules, `inner` the inner names, `running` runs a program (`__main__`), `startup` is a folder for PYTHONPATH.
Only the command `dovetail tf1` imports it, and programs do.
"""

from .finder import install
from .running import run

__all__ = ["install", "run"]
