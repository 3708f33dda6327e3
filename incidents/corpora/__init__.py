"""Recorded cases: the events of a sandbox, and the incidents that they must lead to."""
