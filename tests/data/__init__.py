"""Tests of what goes in."""
