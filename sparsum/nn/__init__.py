"""Modules that keep sparse distributions trainable, and layers that are built on them."""
