"""`python -m invigilator.guard.evaluation`: record the versions of the suite's cases after a change."""

from invigilator.guard.evaluation.suite import load_suite, write_versions

write_versions(load_suite())
