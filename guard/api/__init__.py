"""`guard serve`: the only process that opens the store; HTTP over a Unix socket and loopback TCP."""
