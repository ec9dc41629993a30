"""The test kit for authors of plugins; ``distrl.testing`` is its public face.

``sample`` makes events and what devices show, ``context`` what the runtime hands to a factory, ``pipeline`` runs
plugins in memory on events that went through the codec, ``role_check`` and ``world_check`` hold a plugin to its contract.
"""
