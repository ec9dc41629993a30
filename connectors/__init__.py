"""Everything that touches a vendor: logs, object stores, devices. Vendor errors are translated here and nowhere else.

``open_bus`` and ``open_store`` make what a configuration asks for; the client libraries are
imported only then.
"""
