"""Tests of the policy of a house."""
