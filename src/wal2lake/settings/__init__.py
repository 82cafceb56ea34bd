"""Settings that an operator can choose.

Takes: ``wal2lake.toml`` of a node's directory, environment variables, overrides of a
command line. Gives: one frozen, checked ``Settings``; a commented default file. Owns: the
names, units, defaults and ranges of all settings. Never: applies a setting, reads the
catalog.
"""

from wal2lake.settings.addresses import ListenAddress, parse_web_listen
from wal2lake.settings.catalogs import CatalogSettings, IcebergCatalogSettings
from wal2lake.settings.changelog import LogSettings
from wal2lake.settings.loading import (
    FILE_NAME,
    SettingChange,
    changes,
    fixed_at_start,
    load,
    parameter_names,
)
from wal2lake.settings.objectstore import StoreSettings
from wal2lake.settings.places import file_url_path
from wal2lake.settings.rendering import render_default_toml
from wal2lake.settings.sections import (
    PUBLISHER_LOG,
    ApplySettings,
    IcebergSettings,
    LakeSettings,
    NodeSettings,
    PublishSettings,
    Settings,
    SparkSettings,
    SubscriptionSettings,
    VerifySettings,
    WebSettings,
)

__all__ = [
    "FILE_NAME",
    "PUBLISHER_LOG",
    "ApplySettings",
    "CatalogSettings",
    "IcebergCatalogSettings",
    "IcebergSettings",
    "LakeSettings",
    "ListenAddress",
    "LogSettings",
    "NodeSettings",
    "PublishSettings",
    "SettingChange",
    "Settings",
    "SparkSettings",
    "StoreSettings",
    "SubscriptionSettings",
    "VerifySettings",
    "WebSettings",
    "changes",
    "file_url_path",
    "fixed_at_start",
    "load",
    "parameter_names",
    "parse_web_listen",
    "render_default_toml",
]
