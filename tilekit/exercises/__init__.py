"""Exercises: what a kernel must do (specs), and whether a learner's function does it (the checker)."""

from tilekit.exercises.checker import Verdict, check
from tilekit.exercises.spec import Case, Make, Spec, Work

__all__ = ["Case", "Make", "Spec", "Verdict", "Work", "check"]
