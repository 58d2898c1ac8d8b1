"""`answers`: answers to queries leave, or one head that answers any number of them.

The file of a method holds its proof, its settings and its case for the court.

    head         one head with noise, which leaves
    per_query    one head that stays, and noise on every answer
    neighbours   the records near a question vote, and a label is drawn by their votes
    votes        many heads on disjoint records vote, and the counts get noise
    linear_head  public features with private heads, for all three
    answerer     answers that are paid for, and their noise, for the three of which nothing else leaves
"""
