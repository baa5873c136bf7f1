"""Which store an `obj` tier talks to, and how: the words of `store_config` as arguments of a file system of fsspec.

Mirrors `vllm/v1/kv_offload/tiering/obj/config.py` of release 0.24, where they go to NIXL. Unlike there, all but
`bucket` may be left out: then the SDK looks for endpoint and credentials in its usual places.

Notes:
* fsspec and s3fs are imported when a store is opened, not before.
* Each request is tried three times at most; then its block has failed, which costs a recomputation and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kvlab.checks import unknown_name
from kvlab.tiering.fs.threaded import check_positive

_SCHEMES = ("http", "https")
_TRIES_AGAIN = 2
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5.0, 15.0


@dataclass(frozen=True, slots=True)
class Store:
    """`bucket`: for another protocol than s3 the folder that everything is in. `endpoint_override`: URL, or host:port
    reached by `scheme`. `ca_bundle`: file of certificates to trust. ValueError names a wrong field."""

    bucket: str
    endpoint_override: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    scheme: str = "http"
    ca_bundle: str | None = None

    def __post_init__(self) -> None:
        for name in [each.name for each in fields(self)]:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                shown = "***" if name.endswith("_key") else repr(value)
                raise ValueError(f"store_config.{name} must be text, not empty, got {shown}")
        if "://" in self.bucket:
            raise ValueError(f"store_config.bucket is a name without a protocol, got {self.bucket!r}")
        if self.scheme not in _SCHEMES:
            raise ValueError(f"store_config.scheme must be one of {', '.join(_SCHEMES)}, got {self.scheme!r}")
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("store_config: access_key and secret_key go together, got only one of them")

    @classmethod
    def from_config(cls, config: object) -> Store:
        """Read a `store_config`; ValueError names what is wrong and what is allowed."""
        if not isinstance(config, Mapping):
            raise ValueError(f"store_config must be a mapping with at least 'bucket', got {type(config).__name__}")
        known = [each.name for each in fields(cls)]
        for name in config:
            if name not in known:
                raise unknown_name("store_config key", name, known)
        if "bucket" not in config:
            raise ValueError(f"store_config needs 'bucket', got only {sorted(config)}")
        # As in vLLM, empty text means that it was left out.
        return cls(**{name: value for name, value in config.items() if value != "" or name == "bucket"})

    @property
    def endpoint(self) -> str | None:
        """URL of the store; None where the SDK decides."""
        if self.endpoint_override is None or "://" in self.endpoint_override:
            return self.endpoint_override
        return f"{self.scheme}://{self.endpoint_override}"

    def s3_options(self, connect_timeout_s: float, read_timeout_s: float, connections: int) -> dict[str, Any]:
        """Arguments of `s3fs.S3FileSystem`. Its listings would hide what other processes write, so it keeps none."""
        config: dict[str, Any] = {
            "connect_timeout": connect_timeout_s,
            "read_timeout": read_timeout_s,
            "retries": {"max_attempts": _TRIES_AGAIN},
            "max_pool_connections": connections,
        }
        if self.endpoint is not None:
            # A bucket as part of the host name needs a name server that knows it; stores of one's own have none.
            config["s3"] = {"addressing_style": "path"}
        return {
            "key": self.access_key,
            "secret": self.secret_key,
            "endpoint_url": self.endpoint,
            "client_kwargs": {} if self.ca_bundle is None else {"verify": self.ca_bundle},
            "config_kwargs": config,
            "use_listings_cache": False,
            # More would ask for an object's size before each read, to read its parts at once.
            "max_concurrency": 1,
        }


def open_store(
    protocol: str,
    store: Store,
    storage_options: Mapping[str, Any],
    connect_timeout_s: float | None,
    read_timeout_s: float | None,
    connections: int,
) -> Any:
    """The file system of fsspec, one of its own. Nothing is sent yet. ValueError: `protocol` is unknown or its package
    is missing, or an option does not go with it."""
    check_positive(connect_timeout_s=connect_timeout_s, read_timeout_s=read_timeout_s)
    options: dict[str, Any] = {}
    if protocol == "s3":
        options = store.s3_options(
            connect_timeout_s or CONNECT_TIMEOUT_S, read_timeout_s or READ_TIMEOUT_S, connections
        )  # fmt: skip
    else:
        only_s3 = {"connect_timeout_s": connect_timeout_s, "read_timeout_s": read_timeout_s} | {
            f"store_config.{name}": getattr(store, name) for name in ("endpoint_override", "access_key", "ca_bundle")
        }
        for name, value in only_s3.items():
            if value is not None:
                raise ValueError(f"{name} goes with protocol 's3' only, not {protocol!r}: use storage_options")
    try:
        import fsspec

        made = fsspec.filesystem(protocol, **{**options, **storage_options, "skip_instance_cache": True})
    except ImportError as error:
        raise ValueError(f"protocol {protocol!r}: {error}; for s3: pip install 'kvlab[s3]'") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"protocol {protocol!r} or its storage_options: {error}") from error
    if protocol == "s3":
        # The SDK tries again by itself; s3fs would multiply that by five.
        made.retries = 1
    return made
