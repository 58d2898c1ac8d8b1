"""Answers over HTTP: each is paid for in the ledger before it is made."""

__all__: list[str] = []
