"""A student learns from a teacher's answers, from hints and from public labels.

All inputs are public; the method accounts for what a teacher's answers cost.

    distil      hints, softened answers and labels: what a student learns from
    rounds      RONA's rounds of learning alone and from the teacher, as one training
    selection   which public inputs to query the teacher about
    variations  variations of public images, for a teacher whose answers are free
"""
