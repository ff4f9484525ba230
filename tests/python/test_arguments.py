"""The check of integers, and the names that errors begin with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lattice_bpd.arguments import check_int, errors_named


@pytest.mark.parametrize("value", [2, np.int64(2), np.uint8(2)])
def test_integers_of_any_type_become_ints(value: Any) -> None:
    checked = check_int("f: n", value, 0, 2)
    assert (checked, type(checked)) == (2, int)


@pytest.mark.parametrize("value", [True, 2.0, "2", None, [2]])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(TypeError) as caught:
        check_int("f: n", value, 0, 2)
    assert str(caught.value) == f"f: n is {value!r}; expected an integer, 0..2"


@pytest.mark.parametrize(
    ("value", "most", "expected"), [(0, None, "1 or more"), (0, 5, "1..5"), (6, 5, "1..5")]
)
def test_the_range_is_in_the_message(value: int, most: int | None, expected: str) -> None:
    with pytest.raises(ValueError, match="n is") as caught:
        check_int("n", value, 1, most)
    assert str(caught.value) == f"n is {value}; expected {expected}"
    assert check_int("n", 1, 1, most) == 1


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("decode: there is no prompt; expected one: or more", "generate: there is no prompt; "
         "expected one: or more"),
        ("heads: found none", "heads: found none"),
        ("decode", "decode"),
        ("decoded: 3", "decoded: 3"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [TypeError, ValueError, MemoryError])
def test_errors_name_the_function_that_was_called(
    kind: type[Exception], message: str, expected: str
) -> None:
    with pytest.raises(kind) as caught, errors_named("generate", "decode", "make_drafter"):
        raise kind(message)
    assert str(caught.value) == expected


def test_errors_with_other_contents_stay() -> None:
    error = UnicodeDecodeError("decode: utf-8", b"x", 0, 1, "bad")
    with pytest.raises(UnicodeDecodeError) as caught, errors_named("generate", "decode"):
        raise error
    assert caught.value.args == ("decode: utf-8", b"x", 0, 1, "bad")
