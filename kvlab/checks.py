"""One clear message for wrong input: what was given, what is allowed, and the nearest name that exists."""

import difflib
import importlib.util
import os
import re
from collections.abc import Iterable


def nearest(value: object, known: Iterable[str]) -> str:
    """The known name most like `value` (case and blanks aside), or ""."""
    by_lower = {name.lower(): name for name in known}
    wanted = str(value).strip().lower()
    found = difflib.get_close_matches(wanted, by_lower, n=1, cutoff=0.6)
    if found:
        return by_lower[found[0]]
    inside = [name for low, name in by_lower.items() if len(low) > 1 and low in wanted]
    return inside[0] if inside else ""


def did_you_mean(value: object, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" or ""."""
    guess = nearest(value, known)
    return f"; did you mean {guess!r}?" if guess else ""


def unknown_name_message(what: str, name: object, known: Iterable[str], hint: str = "") -> str:
    """ "what 'name' is unknown; known: ...", then `hint`, or else the nearest name."""
    names = list(known)
    return f"{what} {name!r} is unknown; known: {', '.join(names)}{hint or did_you_mean(name, names)}"


def unknown_name(what: str, name: object, known: Iterable[str], hint: str = "") -> ValueError:
    """A ValueError to raise: names `what`, the wrong `name`, what is known (sorted), the nearest to it, and `hint`."""
    allowed = sorted(known)
    return ValueError(unknown_name_message(what, name, allowed, did_you_mean(name, allowed) + hint))


def checked_int(name: str, value: object, at_least: int) -> int:
    """`value` if it is an int (no bool) >= `at_least`, else ValueError naming it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} must be an int >= {at_least}, got {value!r}")
    return value


def os_error_text(error: OSError) -> str:
    """What failed with which file, in words: "/nope: no such file or directory". Without the system's number, which
    says nothing to a reader."""
    if error.errno is None or not error.strerror:
        return str(error)
    where = error.filename2 or error.filename
    reason = error.strerror[:1].lower() + error.strerror[1:]
    return reason if where is None else f"{os.fsdecode(where)}: {reason}"


#: What `checked_namespace` takes.
NAMESPACE_RULE = "a name of letters, digits, . _ - that starts with a letter or digit, at most 100 of them"


def checked_namespace(name: str, value: object) -> str:
    """`value` if it can name a folder on any system and leads nowhere else, else ValueError naming it."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value, re.ASCII):
        raise ValueError(f"{name} must be {NAMESPACE_RULE}, got {value!r}")
    return value


def require(*modules: str, extra: str) -> None:
    """ModuleNotFoundError that names the first of these modules that is not installed, and kvlab's extra that brings
    it."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"{module} is not installed: pip install 'kvlab[{extra}]'", name=module)
