"""Arguments that `model.generate` does not pass to its `custom_generate` callable."""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any

from transformers import GenerationMixin

_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__


def find_arguments(method: Any) -> dict[str, Any]:
    """`streamer` and `assistant_model` of the `generate` call that calls `method`, else empty.

    transformers 5.20 puts the prompt into `streamer`, but passes neither it nor `assistant_model`
    to the callable, so they are read from the frame of the call.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _GENERATE:
            arguments = frame.f_locals
            if arguments.get("custom_generate") is method:
                return {name: arguments.get(name) for name in ("streamer", "assistant_model")}
        frame = frame.f_back
    return {}
