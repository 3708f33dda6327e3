"""The demo: real agents' programs in real guarded sandboxes, and what came of them."""
