"""The precision of networks: what is rounded, by how much results differ, what is chosen."""

__all__ = ()
