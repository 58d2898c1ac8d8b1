"""Frozen public front ends: trained on public images, sized, profiled, characterised and applied."""
