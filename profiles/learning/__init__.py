"""A policy from what was recorded: facts in, the policy's text and what was left out back. Knows no store."""

from invigilator.profiles.learning.facts import Command, Connection, Recording, Use
from invigilator.profiles.learning.learn import Learned, learn

__all__ = ["Command", "Connection", "Learned", "Recording", "Use", "learn"]
