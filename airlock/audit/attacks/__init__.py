"""One attack a file: what an adversary learns from the thing that leaves."""

from airlock.audit.attacks.loss import loss_threshold

__all__ = ["loss_threshold"]
