"""Invigilator: watch over AI agents in their sandboxes."""
