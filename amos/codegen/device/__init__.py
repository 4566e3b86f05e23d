"""What generators of kernels for parallel devices share: index arithmetic, text, expressions."""

__all__ = ()
