"""The two lines of a configuration that make a real vLLM load a cache policy of kvlab."""

from __future__ import annotations

import json
from dataclasses import dataclass

from kvlab.config import KVTransferConfig
from kvlab.config.known import check_policy
from kvlab.policies import available_policies
from kvlab.policies.registry import VLLM_MODULE, VLLM_OWN

#: What kvlab has in place of vLLM's own, for the example where nobody named a policy of kvlab.
_INSTEAD_OF = {"lru": "logical_recency_lru", "arc": "evictable_list_arc"}


@dataclass(frozen=True, slots=True)
class VLLMLines:
    """`lines` of JSON for `kv_connector_extra_config`; none where vLLM's own policy is meant. `notes` say the rest."""

    heading: str
    lines: tuple[str, ...]
    notes: tuple[str, ...]


def vllm_lines(config: KVTransferConfig | None, policy: str | None = None) -> VLLMLines | None:
    """For `policy`, or else for the one that is configured. None without either; ConfigError for an unknown name."""
    if policy is not None:
        check_policy(policy, where="--policy")
        if policy in VLLM_OWN:
            kept = f"{policy} is a name of vLLM's own, which it keeps: nothing to add (kvlab's: {_INSTEAD_OF[policy]})"
            return VLLMLines(f"{policy} in vLLM", (), (kept,))
        return _lines(policy)
    if config is None:
        return None
    name, module_path = config.eviction_policy, config.cache_policy_module_path
    if name in VLLM_OWN:
        return _lines(_INSTEAD_OF[name], instead_of=name)
    if module_path == VLLM_MODULE:
        return VLLMLines(f"{name} in vLLM", (), ("Both lines are there: vLLM 0.27 and later loads it.", *_needs()))
    return _lines(name if module_path is None or name in available_policies() else f"{module_path}:{name}")


def _lines(name: str, instead_of: str | None = None) -> VLLMLines:
    what = f"{name} in place of vLLM's {instead_of}" if instead_of else name
    lines = f'"eviction_policy": {json.dumps(name)},', f'"cache_policy_module_path": "{VLLM_MODULE}"'
    others = ", ".join(other for other in available_policies() if other not in (name, *VLLM_OWN))
    names = f"Any other name works too: {others}; or my_module:MyPolicy."
    return VLLMLines(
        f"To run {what}, in vLLM 0.27 and later: two lines in kv_connector_extra_config", lines, (*_needs(), names)
    )


def _needs() -> tuple[str, ...]:
    return (f"{VLLM_MODULE} must be importable where vLLM's scheduler runs: install kvlab beside it.",)
