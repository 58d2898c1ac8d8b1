"""`answers`: answers to queries leave, or one head that answers any number of them.

The file of a method holds its proof; its settings and its case for the court lie next to it.

    head                one head with noise, which leaves
    per_query           one head that stays, and noise on every answer
    noisy               that noise: how much, and how it is drawn
    poll                many heads on disjoint records vote, and the counts get noise
    shards              those heads
    fitted              public features with a private head, for all three
    answerer            reservations: one unit per row, answered once
    planner             one head, or noise on every answer?
    case                the case and the canaries of head
    answers_case        the case of per-query
    poll_case           the case of poll
"""
