"""`student`: a compact model leaves, distilled from a teacher that stays.

The file of a method holds its proof; its settings and its case for the court lie next to it.

    ensemble           teachers on disjoint shards answer once, with noise
    ensemble_settings  its settings
    ensemble_case      its case
    answering          how their answers are released
    private_teacher    a teacher under DP-SGD that may be asked anything
    private_settings   its settings
    learning           how a student learns: hints, then rounds
    teachers           teachers, without privacy; none leaves
    settings           settings that the methods share
"""
