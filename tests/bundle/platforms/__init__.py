"""A bundle in the layout of other platforms."""
