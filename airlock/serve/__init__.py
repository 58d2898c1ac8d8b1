"""Answers over HTTP: each is paid for in the ledger before it is made.

In: a bundle that answers, its ledger and its keys. Out: the Open Inference Protocol over HTTP, and two pages.

    run             the process: an address, a server, an orderly end
    service         everything that one service is made of, before it has an address
    app             which address does what, in which order
    middleware      what surrounds every request: an identity, limits, headers, a line of log
    access          bearer tokens, and what each kind of key may do
    protocol        request bodies, questions and answers in the Open Inference Protocol
    answer_handler  reserve, charge, answer, keep; answers computed off the event loop
    problems        errors as RFC 9457 tells them to programs
    schema          what `/openapi.json` says
    pages           the pages: what is left of the budget, and how to ask
    ledger_paths    where the ledger of a release lies
"""

__all__: list[str] = []
