"""Which store an `obj` tier talks to, and how: the words of `store_config` as arguments of a file system of fsspec.

Mirrors `vllm/v1/kv_offload/tiering/obj/config.py` of release 0.24, where they go to NIXL. Unlike there, all but
`bucket` may be left out: then the SDK looks for endpoint and credentials in its usual places.

Notes:
* fsspec and s3fs are imported when a store is opened, not before.
* Each request is tried three times at most; then its block has failed, which costs a recomputation and no more.
* The SDK's read time limit does not cover a put that waits for "100 Continue": against a server that hangs it would
  wait for ever. So each request, with its tries, has a limit that cancels it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kvlab.checks import unknown_name
from kvlab.tiering.fs.threaded import check_positive

_SCHEMES = ("http", "https")
_TRIES_AGAIN = 2
CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S = 5.0, 30.0


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

    def s3_options(self, timeout_s: float, connections: int) -> dict[str, Any]:
        """Arguments of `s3fs.S3FileSystem`. Its listings would hide what other processes write, so it keeps none."""
        config: dict[str, Any] = {
            "connect_timeout": min(timeout_s, CONNECT_TIMEOUT_S),
            "read_timeout": timeout_s,
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


class Remote:
    """A file system of fsspec, one of its own. Methods are fsspec's, run from any thread; where it can be cancelled
    (`async_impl`), TimeoutError after `timeout_s` seconds. Nothing is sent before the first call.

    ValueError: `protocol` is unknown or its package is missing, or an option does not go with it.
    """

    def __init__(
        self,
        protocol: str,
        store: Store,
        storage_options: Mapping[str, Any],
        request_timeout_s: float | None,
        connections: int,
    ) -> None:
        check_positive(request_timeout_s=request_timeout_s)
        self.timeout_s = request_timeout_s or REQUEST_TIMEOUT_S
        options = store.s3_options(self.timeout_s, connections) if protocol == "s3" else {}
        if protocol != "s3":
            for name in ("endpoint_override", "access_key", "ca_bundle"):
                if getattr(store, name) is not None:
                    raise ValueError(f"store_config.{name} is for protocol 's3' only, not {protocol!r}")
        self.fs = _filesystem(protocol, {**options, **storage_options})
        self.can_cancel = bool(getattr(self.fs, "async_impl", False))
        if request_timeout_s is not None and not self.can_cancel:
            raise ValueError(f"request_timeout_s: requests of protocol {protocol!r} cannot be cancelled")
        if protocol == "s3":
            # The SDK tries again by itself; s3fs would multiply that by five.
            self.fs.retries = 1

    def call(self, name: str, *arguments: Any, **more: Any) -> Any:
        """The method `name` of the file system."""
        if self.can_cancel:
            return self.run(getattr(self.fs, f"_{name}"), *arguments, **more)
        return getattr(self.fs, name)(*arguments, **more)

    def run(self, function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """An async function, on fsspec's thread."""
        from fsspec.asyn import sync
        from fsspec.exceptions import FSTimeoutError

        try:
            return sync(self.fs.loop, function, *arguments, timeout=self.timeout_s, **more)
        except FSTimeoutError:
            raise TimeoutError(errno.ETIMEDOUT, f"no answer within {self.timeout_s:g} s") from None


def _filesystem(protocol: str, options: Mapping[str, Any]) -> Any:
    try:
        import fsspec

        return fsspec.filesystem(protocol, **{**options, "skip_instance_cache": True})
    except ImportError as error:
        raise ValueError(f"protocol {protocol!r}: {error}; for s3: pip install 'kvlab[s3]'") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"protocol {protocol!r} or its storage_options: {error}") from error
