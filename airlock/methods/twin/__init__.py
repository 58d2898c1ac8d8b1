"""`twin`: what leaves is a model that was built from many, not one that was trained.

The file of a method holds its proof, its settings and its case for the court.

    sharded       the noisy mean of models on disjoint shards
    sharded_case  the records of its case
    heads         the model of one shard: a linear head over public features
"""
