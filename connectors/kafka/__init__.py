"""The log on Apache Kafka, through kafka-python 3. Opened by ``connectors.open_bus``.

``bus`` is the entry; ``connection`` opens clients, ``backdoor`` holds all that reaches behind their public surface;
``failure`` turns its errors into ours; ``catalog`` and ``admin`` know the topics; ``producer`` writes, ``transaction``
writes behind a fence, both through ``delivery``; ``consumer`` reads, ``rebalance`` runs its callbacks, ``quiet`` polls for
readers without a group.
"""

from __future__ import annotations

from distrl.connectors.kafka.bus import KafkaBus

__all__ = ["KafkaBus"]
