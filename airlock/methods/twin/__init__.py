"""`twin`: what leaves is a model that was built from many, not one that was trained.

The file of a method holds its proof; its settings and its case for the court lie next to it.

    sharded         the noisy mean of models on disjoint shards
    heads           a shard as a linear head over public features
    shard_settings  the settings of both
    shard_case      the cases of both
    shard_canaries  the canaries of sharded
"""
