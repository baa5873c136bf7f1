"""kvlab's cache policies inside vLLM 0.27 or later. Two keys of `kv_connector_extra_config` load one:

    "eviction_policy": "logical_recency_lru",
    "cache_policy_module_path": "kvlab.integrations.vllm"

vLLM looks the policy's name up as an attribute of the module; here each name that `kvlab.policies` knows is one, and
so is `my_module:MyPolicy`, for a policy of your own written against `kvlab.policies.CachePolicy`. `lru` and `arc` are
taken: vLLM's own win. The process that runs vLLM's scheduler needs kvlab installed.

Notes:
* Importing this module imports no vLLM; asking it for a policy does. ImportError, with what to install, without one.
* The release need not be named: `adapters` says what differs between them.
"""

from typing import Any

from kvlab.integrations.vllm.adapters import vllm_policy_class
from kvlab.policies import available_policies, get_policy_class

__all__ = ["vllm_policy_class"]


def __getattr__(name: str) -> Any:
    """The class for the policy of that name. AttributeError if there is none, ImportError without vLLM 0.27+."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        policy_class = get_policy_class(name)
    except ValueError as error:
        raise AttributeError(str(error)) from None
    return vllm_policy_class(policy_class)


def __dir__() -> list[str]:
    return [*__all__, *available_policies()]
