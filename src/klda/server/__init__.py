"""The service: a model folder behind HTTP, with a page to teach and ask (``klda serve``).

A change flows one way::

    gate         who may do what, and limits, before a body is read
    api, page    HTTP: JSON for programs, HTML for people
    service      asynchronous verbs; encodes inputs with batching
    writer       one thread: groups changes, has update apply them, swaps the snapshot
    journal      a SQLite database; its commit is the acknowledgement
    snapshot     a frozen learner that answers, never changed once made

Needs the extra ``klda[server]``. The client needs nothing else of this package.
"""
