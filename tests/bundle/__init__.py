"""Tests of `airlock.release`."""
