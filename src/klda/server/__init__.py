"""The service: a model folder behind HTTP, with a page to teach and ask (``klda serve``).

Data flows one way here too::

    journal     changes on disk, before they are acknowledged
    snapshot    what answers are computed from: never changed once made
    inference   one thread that encodes and answers, many small requests at a time
    writer      one thread that makes changes durable, applies them and swaps the snapshot
    service     these three behind asynchronous calls
    api, page   HTTP on top; security in front of both

Needs the extra ``klda[server]``.
"""

from __future__ import annotations
