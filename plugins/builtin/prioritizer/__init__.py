"""Built-in prioritizers: plain arithmetic on the numbers that ride on the events."""
