"""Modules that all frameworks of Horovod share."""
