"""`features`: records leave through a local front end, as something else.

The file of a method holds its proof; its settings and its case for the court lie next to it.

    noised         clipped numbers with noise once, proven
    bound          what nobody can rebuild from them
    rows           which rows leave: a declared number of them
    case           the case of noised
    choose         how many layers and channels, from limits
    prune          which channels may leave
    characterised  a front end measured on public data and on this machine
    extracting     records into shards of features, for both methods
    front          the front end of a release
    reopen         the same from the vault, for attacks
    settings       the settings of both methods
"""
