"""Configuration: the two commands, the connector's configuration and KV layouts, read and checked.

Everything the user can get wrong is one `ConfigError` that names key, value and what is allowed. Nothing is executed.
"""

from kvlab.config.errors import ConfigError
from kvlab.config.kv_transfer import KVTransferConfig
from kvlab.config.layout import KVCacheGroup, KVLayout, available_layouts, load_layout
from kvlab.config.load import InputParts, PRInput, load_dir, load_parts
from kvlab.config.numbers import format_bytes, read_bytes
from kvlab.config.serve import ServeConfig, parse_serve
from kvlab.config.shell import ShellScript, parse_shell, read_shell
from kvlab.config.source import Origin, Setting
from kvlab.config.tiers import TierConfig
from kvlab.config.workload_args import GuidellmConfig, parse_guidellm

__all__ = [
    "ConfigError",
    "GuidellmConfig",
    "InputParts",
    "KVCacheGroup",
    "KVLayout",
    "KVTransferConfig",
    "Origin",
    "PRInput",
    "ServeConfig",
    "Setting",
    "ShellScript",
    "TierConfig",
    "available_layouts",
    "format_bytes",
    "load_dir",
    "load_layout",
    "load_parts",
    "parse_guidellm",
    "parse_serve",
    "parse_shell",
    "read_bytes",
    "read_shell",
]
