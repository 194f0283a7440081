"""The service: a model folder behind HTTP, with a page to teach and ask (``klda serve``).

A change flows one way::

    api, page    HTTP; gate, keys and routes check a request before its body is read
    service      asynchronous verbs; encodes inputs with batching
    writer       one thread: applies changes, commits them to the journal, swaps the snapshot
    journal      a SQLite database; its commit is the acknowledgement
    snapshot     a frozen learner that answers, never changed once made

Needs the extra ``klda[server]``. The client needs nothing else of this package.
"""
