"""`twin`: what leaves is a model that was built from many, not one that was trained.

The file of a method holds its proof; its settings and its case for the court lie next to it.

    sharded         the noisy mean of models on disjoint shards
    kde_sharded     coordinates drawn from the density of such models
    heads           a shard as a linear head over public features
    shard_settings  the settings of both
    shard_case      the cases of both
    shard_canaries  the canaries of sharded
    published       DP-PG and DP-PGP as published, a claim
    generate        its draw: every parameter from the density of its slice
    groups          its groups of significant parameters
    settings        its settings
    case            its case
"""
