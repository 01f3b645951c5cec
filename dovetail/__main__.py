"""`python -m dovetail` is the command `dovetail`."""

from .tools.cli import main

if __name__ == "__main__":
    main()
