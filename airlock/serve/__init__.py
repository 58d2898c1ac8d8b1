"""Answers over HTTP: each is paid for in the ledger before it is computed.

In: a bundle that answers, its ledger and its keys. Out: the Open Inference Protocol over HTTP, and two pages.

    run             the process: an address, a server, a graceful shutdown
    service         everything that makes up a service, before it has an address
    app             the routes and what each does
    middleware      around every request: an id, headers, a line in the log
    connections     counted from the moment they are accepted; limits on number, time and bytes
    tls             a certificate and its key, checked at the start
    access          bearer tokens, and what each kind of key may do
    admission       fair shares of memory and turns between clients
    protocol        request bodies, queries and answers in the Open Inference Protocol
    answer_handler  reserve, charge, answer, keep; answers computed off the event loop
    problems        errors as RFC 9457 problem details
    schema          the contents of `/openapi.json`
    pages           the pages: the remaining budget, and how to send a query
    ledger_paths    where the ledger of a release is
"""

__all__: list[str] = []
