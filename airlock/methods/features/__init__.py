"""`features`: what leaves are features of the records, computed by a front end that stays inside.

The file of a method holds its settings, its proof and its case for the court.

    noised      clipped features with noise added once; proven
    extracting  what all methods share: send records through a front end and write shards of features
    front       the front end of a release: settings, weights, channels, and what the vault keeps of it
"""
