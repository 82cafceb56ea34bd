"""Is it still our source, and can its slot send what is missing?

Takes: a connection to the publisher, what is known of it, what was received from it. Gives: errors
with their remedy; what counts as confirmed to the slot. Owns: the catalog's system identifier and
timeline, the first word in the file ``confirmed``. Never: writes anything before the publisher has
let the slot be used.

    source                 asks before START_REPLICATION, writes once it is accepted
    history, slotcheck     what the answers mean (pure)
"""
