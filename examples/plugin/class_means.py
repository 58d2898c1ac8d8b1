"""`weights/class-means`: how many records a class has and what they sum up to, with noise; a network says what is near.

Guarantee: a record adds one row of norm at most √2 (its pixels, scaled to norm 1 or less, and a 1) to the sums of its
class. Gaussian noise of that sensitivity is added once to all of them, and the rest follows from the noisy sums.
"""

import numpy as np
import torch

from airlock import nets
from airlock.accounting import calibrate, repeat
from airlock.config import Frozen, from_table
from airlock.data import Facts, Records
from airlock.mechanisms import GaussianNoise
from airlock.methods import Case, Channel, Executed, NetworkArtefact, Plan
from airlock.training import outcomes_of


class ClassMeans(Channel):
    channel, method, status, title = "weights", "class-means", "proven", "the noisy mean of every class"
    leaves = "A model that knows of each class how many records it has and what they look like on average, roughly."
    settings_model = Frozen  # it has no settings

    def plan(self):
        noise = calibrate(self.events, self.config.epsilon, self.config.delta, accountant=self.config.accountant)
        return Plan(
            self.channel, self.method, self.leaves, self.promise(self.events(noise)), {"noise_multiplier": noise}
        )

    def events(self, noise):
        return repeat(GaussianNoise(2**0.5, noise).event, self.config.tuning_runs)

    def execute(self, plan, split, randomness, run):
        sums = self.sums(split.private, plan.details["noise_multiplier"], randomness.privacy.child("sums"))
        means = torch.tensor(sums[:, :-1] / np.maximum(sums[:, -1:], 1.0), dtype=torch.float32)
        net = nets.create("linear", self.facts.shape, len(means), seed=0)
        net.load_state_dict({"1.weight": means, "1.bias": -(means**2).sum(1) / 2})
        found, executed = outcomes_of(net, split.test), self.events(plan.details["noise_multiplier"])
        return Executed(NetworkArtefact.leaving(net, "linear", self.facts), executed, found)

    def sums(self, records, noise, stream):
        scale = 255.0 if records.x.dtype == np.uint8 else 1.0
        x = records.x.reshape(len(records), int(np.prod(self.facts.shape))) / scale
        rows = np.c_[x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True)), np.ones(len(x))]
        exact = np.stack([rows[records.y == label].sum(0) for label in range(len(self.facts.classes))])
        return GaussianNoise(2**0.5, noise).add(exact, stream)

    @classmethod
    def case(cls, epsilon, delta):
        asked = {"channel": "weights", "method": "class-means", "data": "court", "epsilon": epsilon, "delta": delta}
        channel = cls(from_table(asked), Facts("court", (2,), ("a", "b"), 1, 1, "made up"))
        plan, one = channel.plan(), Records(np.array([[1.0, 0.0]], np.float32), np.array([0]))

        def run(there, count, stream):
            records, noise = one.take(np.arange(int(there))), plan.details["noise_multiplier"]
            return np.array([channel.sums(records, noise, stream.child(i))[0] for i in range(count)]) @ [[1], [0], [1]]

        return Case.of_proven(plan.guarantee, "one record, or nobody", ("its row",), run)
