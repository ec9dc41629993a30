"""The contracts between the parts of distrl: plain dataclasses and protocols, no vendor library.

``events`` are the records on the log; ``topic`` declares where they go; ``bus`` and ``store`` are
what connectors implement; ``observation``, ``task``, ``device`` and ``policy`` are what a collector works
with; ``role`` holds the four roles' behaviours; ``staleness`` decides what is too old;
``clock`` injects time. Nothing here imports torch, numpy or a client library.
"""
