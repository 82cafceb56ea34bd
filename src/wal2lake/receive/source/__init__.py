"""Checks that the publisher is the same source and that its slot can continue the log.

Takes: a connection to the publisher, recorded facts about it, received positions. Gives: errors
with their remedy; the position confirmed to the slot. Owns: the catalog's system identifier and
timeline, the first word in the file ``confirmed``. Never: writes anything before the publisher has
acquired the slot.

    source                 queries before START_REPLICATION, records once it is accepted
    history, slotcheck     checks of the results (pure)
    publicationwatch       tables whose publication has changed since their copy
"""
