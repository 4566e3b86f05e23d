"""The precision of networks: rounding, its errors, and the choice within a budget."""

__all__ = ()
