"""What is wrong with an option of a command line, in words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_KINDS = {
    "<class 'int'>": "an integer",
    "<class 'float'>": "a number",
    "<class 'bool'>": "true or false",
    "<class 'collections.abc.Sequence'>": "a list, such as [0.1, 1]",
}
_OF_A_DICT = "dict[str, float | dict["  # the type of a single option


def unknown_option(error: Exception, known: Iterable[str]) -> str | None:
    """Of an option that is not there: the nearest among the ``known`` ones; None for any other error."""
    found = re.match(r"(?:unrecognized arguments: --|Subcommand '\w+' does not accept option ')([\w.-]+)", str(error))
    if found is None:
        return None
    options = {option.replace("-", "_"): option for option in known}
    near = difflib.get_close_matches(found[1].replace("-", "_"), list(options), n=1, cutoff=0.6)
    hint = f": did you mean --{options[near[0]]}?" if near else ""
    return f"there is no option --{found[1]}{hint}"


def explain(error: Exception, *, dashes: bool) -> str:
    """Jsonargparse's error in one line: the option's name, the value, and what is allowed.

    Args:
        dashes: whether the command line writes its options so, and not with underscores.
    """
    text = " ".join(str(error).split())
    missing = re.search(r"arguments are required: (?:\w+\.)?(\w+)", text)
    if missing:
        return f"--{missing[1].replace('_', '-') if dashes else missing[1]} is missing"
    found = re.match(r'Parser key "([\w.]+)"', text)
    name = found[1] if found is not None else ""
    name = name.replace("_", "-") if dashes and not name.startswith("override.") else name
    if "NestedArg" in text:  # an option that was given a field
        option = f"--{name}" if name else "an option of a list"
        return f"{option} has no fields: it is given without a dot, as in {option if name else '--OPTION'} VALUE"
    if "Unable to load config" in text and name:
        return f"--{name} is given by fields, as in --{name}.FIELD VALUE, or as a file that is there"
    given = re.findall(r"(?:Got|Given) value: (.*?)(?= Given value|$)", text)[-1:]
    if found is not None and _OF_A_DICT in text:
        kinds = "a number, `action` or numbers by action for each outcome, as in --value.yes action --value.no 0 or"
        return (
            f"--{found[1]}={''.join(given)}: allowed is {kinds}" + """ --value '{"yes": {"S": 5, "L": 9}, "no": 0}'"""
        )
    allowed = [kind for name, kind in _KINDS.items() if name in text]
    allowed += [choices.replace("'", "") for choices in re.findall(r"Literal\[(.*?)\]", text)[:1]]
    if found is None:
        return text
    if not given or not allowed:
        return f"--{name}: {text[found.end() :].removeprefix(':').strip()}"
    return f"--{name}={given[0]}: allowed is {' or '.join(allowed)}"
