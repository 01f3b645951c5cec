"""`dt.config`: switches of the process."""

from . import experimental

__all__ = ["experimental"]
