"""Attack `sure-guess`: whoever the model is sure about was in its training set."""

import numpy as np

from airlock.auditing.attacks import Attack


class SureGuess(Attack):
    name = "sure-guess"
    question = "Does the model decide more surely about the people it was trained on?"

    def score(self, target, records, known, seed):
        logits = np.sort(target.answers(records), axis=1)
        return logits[:, -1] - logits[:, -2]
