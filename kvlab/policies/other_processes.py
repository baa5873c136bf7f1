"""Policies in other processes: a name registered by hand is known in this one only."""

import os
import sys

from kvlab.policies.registry import get_policy_class


def module_of(name: str) -> str | None:
    """The module that another process must import before it knows `name`; None: the program it starts with.

    ValueError for a policy that no other process can find: defined in a notebook cell, at the prompt, or in a function.
    """
    policy_class = get_policy_class(name)
    module_name: str = policy_class.__module__
    module = sys.modules.get(module_name)
    if getattr(module, policy_class.__qualname__, None) is policy_class:
        if module_name != "__main__":
            return module_name
        if os.path.isfile(getattr(module, "__file__", None) or ""):
            return None
    raise ValueError(
        f"policy {name!r} is defined where no other process can find it (a notebook cell, the prompt, or a function); "
        f"put {policy_class.__name__} into a file, in a notebook with %%writefile my_policies.py, and name it "
        f"my_policies:{policy_class.__name__}"
    )
