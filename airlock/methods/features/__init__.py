"""`features`: records leave through a local front end, as something else.

The file of a method holds its settings, its proof and its case for the court.

    noised      clipped numbers with noise added once, proven
    extracting  what every method shares: records through a front end into shards of features
    front       the front end of a release: settings, weights, channels, and what the vault keeps of it
"""
