"""Attacks on features that leave: rebuild records, find members, read off attributes, name the front end.

The attacks themselves are in `auditing.attacks`; this package holds what they share and what runs them.

    release                 the attacks on a release of features
    attack                  the attacks together, the attackers, and the contact sheet
    feature_pipeline        how a record becomes the features that leave
    reconstruction_metrics  how good a reconstruction is, compared with a blind guess
"""
