"""A small, real training loop: an agent learns what to do in guarded sandboxes, with the penalty and without
it.

The agent is a table: one preference an action, a softmax over them, and group advantages as GRPO makes them.
All else is real: the sandboxes, the commands, the verifier, what the kernel saw, the penalties.
"""
