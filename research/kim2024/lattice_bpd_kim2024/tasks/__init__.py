"""Evaluation tasks: prompts and references from the user's files."""

from __future__ import annotations

from lattice_bpd_kim2024.tasks.examples import Example, read_task
from lattice_bpd_kim2024.tasks.table import TASKS, Task, find_task

__all__ = ["TASKS", "Example", "Task", "find_task", "read_task"]
