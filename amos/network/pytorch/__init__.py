"""PyTorch: modules read by its exporter, and the backend of ``torch.compile``."""

__all__ = ()
