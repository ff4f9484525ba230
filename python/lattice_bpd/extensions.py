"""What may be installed beside the core: optional dependencies, and entry points.

An entry point has a group, such as :data:`COMMANDS`, a name, such as the command that is typed,
and a value ``module:function``. Optional dependencies are imported at first use.
"""

from __future__ import annotations

import argparse
import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS = "lattice_bpd.commands"
"""Group of ``add_parser(commands)``, by command; "ngram spark" is one of the core's ``ngram``."""

TARGETS = "lattice_bpd.targets"
"""Group of classes of targets, by kind of model; see ``verify.target.build_target``."""

HEAD_FORMATS = "lattice_bpd.head_formats"
"""Group of ``models.checkpoint.HeadFormat``."""

TARGET_PARTS = "lattice_bpd.target_parts"
"""Group of functions of a target and its folder that attach a part, by the stem of its JSON file.

An output embedding that then computes more than ``nn.Linear`` has a method ``project_states``: the
logits of the states of BlockwiseHeads.
"""

CONSTRAINTS = "lattice_bpd.constraints"
"""Group of ``constraint``, which makes a ``ConstrainedText`` for each text; ``regex``, .."""

DRAFTERS = "lattice_bpd.drafters"
"""Group of functions of a source and a DraftConfig that make a Drafter, by strategy."""

_DISTRIBUTIONS: dict[str, dict[str, str]] = {
    COMMANDS: {
        "ngram spark": "lattice-bpd-spark",
        "ngram query": "lattice-bpd-recognition",
        "rescore": "lattice-bpd-recognition",
        "certify": "lattice-bpd-conformance",
        "check": "lattice-bpd-conformance",
        **dict.fromkeys(
            ("evaluate", "record", "replay", "report", "tune", "speculation", "heads", "rescorer"),
            "lattice-bpd-kim2024",
        ),
    },
    TARGETS: {"encoder-decoder": "lattice-bpd-translation"},
    DRAFTERS: {"draft_model": "lattice-bpd-drafters"},
    HEAD_FORMATS: {
        "block_drafter": "lattice-bpd-drafters",
        "spec_drafter": "lattice-bpd-translation",
        "medusa": "lattice-bpd-drafters",
    },
    TARGET_PARTS: {"first_head": "lattice-bpd-kim2024"},
    CONSTRAINTS: dict.fromkeys(("constraint", "regex", "json-schema"), "lattice-bpd-constraints"),
}  # that this project has, by group and name: what to install where an entry point is missing
_KINDS = {
    COMMANDS: "command",
    TARGETS: "kind of target",
    HEAD_FORMATS: "format of heads",
    TARGET_PARTS: "part of a target",
    CONSTRAINTS: "feature",
    DRAFTERS: "strategy",
}


def find_extensions(group: str) -> dict[str, EntryPoint]:
    """The installed entry points of a group, by name, in alphabetical order."""
    from importlib.metadata import entry_points  # slow

    return {point.name: point for point in sorted(entry_points(group=group), key=lambda p: p.name)}


def known_extensions(group: str) -> dict[str, bool]:
    """Whether each extension of a group is installed: those of this project and all others."""
    installed = find_extensions(group)
    return {name: name in installed for name in {**_DISTRIBUTIONS.get(group, {}), **installed}}


def load_extension(group: str, name: str) -> Any:
    """Imports the function or class of an entry point.

    Raises:
        ImportError: No installed distribution has it, or its import fails; the message names the
            distribution and says what to do.
    """
    point = find_extensions(group).get(name)
    kind = _KINDS.get(group, group)
    if point is None:
        distribution = _DISTRIBUTIONS.get(group, {}).get(name)
        if distribution is None:
            raise ImportError(f"no installed distribution has the {kind} {name!r}")
        raise ImportError(f"{name!r} is a {kind} of {distribution}; pip install {distribution}")
    try:
        return point.load()
    except Exception as error:  # of any kind: the code is not ours
        raise _failure(kind, point, error) from error


def _failure(kind: str, point: EntryPoint, error: Exception) -> ImportError:
    owner = point.dist.name if point.dist else point.value
    version = f" {point.dist.version}" if point.dist else ""
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ImportError(
        f"{point.name!r}, a {kind} of {owner}{version}, cannot be loaded: {reason}; "
        f"update {owner} or uninstall it"
    )


def add_commands(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], parent: str = ""
) -> None:
    """Adds the commands of other distributions to a parser, after the core's own.

    Those that are not installed or cannot be loaded fail when they are run, with a message that
    says what to do; the other commands are unaffected.

    Args:
        commands: The parser's subparsers.
        parent: The group of the core that they belong to, such as "ngram".
    """
    installed = find_extensions(COMMANDS)
    for name in {**installed, **_DISTRIBUTIONS[COMMANDS]}:
        group, _, word = name.rpartition(" ")
        if group != parent or word in commands.choices:
            continue
        try:
            add_parser = load_extension(COMMANDS, name)
        except ImportError as error:
            _add_failing(commands, word, error, listed=name in installed)
            continue
        try:
            add_parser(commands)
        except Exception as error:
            commands._name_parser_map.pop(word, None)  # it may have come that far
            failure = _failure(_KINDS[COMMANDS], installed[name], error)
            _add_failing(commands, word, failure, listed=True)


def _add_failing(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    word: str,
    error: ImportError,
    *,
    listed: bool,
) -> None:
    """A command that takes any arguments and raises the error."""
    options: dict[str, Any] = {"help": "(cannot be loaded)"} if listed else {}
    parser: Any = commands.add_parser(word, add_help=False, **options)
    failing = argparse.Namespace(run=partial(_fail, error))
    parser.parse_known_args = lambda _arguments, _namespace=None: (failing, [])


def _fail(error: ImportError, _: argparse.Namespace) -> None:
    raise error


def require(module: str, extra: str) -> Any:
    """Imports an optional module.

    Args:
        module: Its import name, such as ``"pywrapfst"``.
        extra: What installs it: an extra of lattice-bpd, such as ``"openfst"``, or a distribution
            of an add-on, ``"lattice-bpd-spark"``.

    Returns:
        The module.

    Raises:
        ImportError: It is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        source = extra if extra.startswith("lattice-bpd") else f"'lattice-bpd[{extra}]'"
        raise ImportError(
            f"{module} is required and cannot be imported ({error}); "
            f"install it with: pip install {source}"
        ) from error
