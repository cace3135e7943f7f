"""Advice: which cut, schedule, number of microbatches and recomputation suit a model that was measured."""

from minipipe.advice.advising import advise
from minipipe.advice.candidates import Candidate
from minipipe.advice.measurements import Measurements
from minipipe.advice.messages import Messages
from minipipe.advice.report import Advice, Report
from minipipe.advice.weighing import Choice

__all__ = ["Advice", "Candidate", "Choice", "Measurements", "Messages", "Report", "advise"]
