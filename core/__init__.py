"""The core of distrl: contracts, events, codec, configuration, node runtime and command line."""
