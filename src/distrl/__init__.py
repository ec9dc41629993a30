"""distrl: fine-tune agents that operate mobile devices, by asynchronous distributed reinforcement learning.

What a plugin author needs comes from here; ``distrl.plugins`` is the author's page and
``distrl.testing`` the test kit.
"""
