"""Tests of what is exported for others."""
