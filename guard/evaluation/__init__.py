"""`guard eval`: the detectors against labelled scenarios and honest work, in real sandboxes."""

from invigilator.guard.evaluation.report import EvaluationReport
from invigilator.guard.evaluation.run import run_evaluation

__all__ = ["EvaluationReport", "run_evaluation"]
