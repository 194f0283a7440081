"""The service: a model folder behind HTTP, with a page to teach and ask (``klda serve``).

docs/architecture.md says how a request and a change pass through these modules. They need the extra
``klda[server]``; the client needs nothing else of this package.
"""
