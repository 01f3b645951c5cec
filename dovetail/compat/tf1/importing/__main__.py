"""`python -m dovetail.tf1 train.py --flags` runs an old program; see `dovetail.tf1`."""

import sys

from .running import run

if __name__ == "__main__":
    run(sys.argv[1:])
