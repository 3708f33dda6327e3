"""What this machine can do, found by trying: one file a subject; each gives findings."""
