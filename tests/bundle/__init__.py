"""Tests of `airlock.bundle`."""
