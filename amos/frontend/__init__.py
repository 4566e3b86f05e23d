"""Other programs' descriptions of tensor computations, read into operators."""

from amos.frontend.te import from_te

__all__ = ["from_te"]
