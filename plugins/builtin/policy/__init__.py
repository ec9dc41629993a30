"""Built-in policies. Each is imported when it is made; its options module needs neither torch nor numpy."""
