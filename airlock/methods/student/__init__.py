"""`student`: a compact model leaves, distilled from a teacher that stays.

The file of a method holds its settings, its proof and its case for the court.

    ensemble         teachers on disjoint shards answer once, with noise
    answering        how their answers are released
    neighbours       near records vote once for the labels of public inputs, with noise
    private_teacher  a teacher under DP-SGD that may be asked anything
    learning         how a student learns: hints, then rounds
    teachers         teachers, without privacy; none leaves
"""
