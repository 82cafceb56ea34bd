"""auto_refresh: tables join and leave a subscription as they do its publications.

Takes: subscriptions with the option, their publishers. Gives: tables that are created, copied,
copied again or left, each with a row of wal2lake.schema_history. Owns: the connections that it
watches over, ``seen_as`` of pg_subscription_rel. Never: does what REFRESH PUBLICATION does in
another way (``refresh``), holds a transaction open at a publisher.

    watch      the thread that looks at each publisher every few seconds; start here
    look       one look: what is found out, and in which order it takes effect
    changes    which tables join, leave and are copied again (pure)
"""

from wal2lake.commands.subscription.auto.watch import AutoRefresh

__all__ = ["AutoRefresh"]
"""Public names of this folder."""
