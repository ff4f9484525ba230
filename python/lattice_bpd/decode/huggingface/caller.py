"""What `model.generate` keeps from the callables that it is given as `custom_generate`."""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any

from transformers import GenerationMixin

_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__


def find_arguments(method: Any) -> dict[str, Any]:
    """The arguments of the `generate` that is calling `method`; empty where none is.

    transformers 5.20 gives the prompt to `streamer`, but neither that nor `assistant_model` to a
    callable, and offers no other way to them. So they are read from the frame of the call.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _GENERATE:
            arguments = frame.f_locals
            if arguments.get("custom_generate") is method:
                return {name: arguments.get(name) for name in ("streamer", "assistant_model")}
        frame = frame.f_back
    return {}
