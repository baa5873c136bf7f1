"""Names that a configuration may use, and where they come from."""

from __future__ import annotations

from kvlab.config.errors import ConfigError, did_you_mean, unknown_name, wrong_value

ROLES = ("kv_producer", "kv_consumer", "kv_both")
# The first is the one kvlab models; the others are vLLM 0.24's, to tell "another connector" from a misspelt one.
CONNECTORS = (
    "OffloadingConnector", "SimpleCPUOffloadConnector", "LMCacheConnectorV1", "LMCacheMPConnector", "NixlConnector",
    "NixlPullConnector", "NixlPushConnector", "MultiConnector", "MoRIIOConnector", "MooncakeConnector",
    "MooncakeStoreConnector", "FlexKVConnectorV1", "HF3FSKVConnector", "DecodeBenchConnector", "ExampleConnector",
)  # fmt: skip
# `kvlab.spec.register_spec` adds to it.
SPEC_NAMES: list[str] = ["CPUOffloadingSpec", "TieringOffloadingSpec"]


def check_policy(name: object, module_path: str | None = None, where: object = "") -> None:
    """Whether `name` is a registered cache policy, or some class in `module_path`. Raises ConfigError."""
    from kvlab.policies import available_policies, get_policy_class
    from kvlab.policies.registry import VLLM_MODULE

    known = sorted({"lru", *available_policies()})
    if not isinstance(name, str) or not name:
        raise wrong_value("eviction_policy", name, f"one of {', '.join(known)}", where)
    if module_path not in (None, VLLM_MODULE):
        return
    try:
        get_policy_class(name)
    except ValueError as error:
        if ":" in name:
            raise ConfigError(str(error), key="eviction_policy", value=name, where=where) from None
        hint = (
            did_you_mean(name, known) or "; or module:Class, or a class name with cache_policy_module_path (vLLM 0.27+)"
        )
        raise unknown_name("eviction_policy", name, known, where, hint) from None
