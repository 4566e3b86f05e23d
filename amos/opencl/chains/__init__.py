"""Chains on OpenCL devices: loops on work-groups and work-items."""

__all__ = ()
