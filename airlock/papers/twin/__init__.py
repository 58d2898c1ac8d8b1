"""Mao et al. 2020, DP-PG and DP-PGP, as published; and the sound form of their sampler.

The docstring of `published` says what the paper claims and what is wrong with it.

    published    the method, its settings and its case for the court; its claim fails
    generate     its draw: every parameter from the density of its values
    groups       its groups of significant parameters
    kde_sharded  the same draw over models on disjoint shards, proven
"""
