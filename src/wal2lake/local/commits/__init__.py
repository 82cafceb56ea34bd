"""Commits a local transaction: from branches into tables, all or none.

commit      the durable steps of a commit
prepared    PREPARE TRANSACTION, COMMIT PREPARED and ROLLBACK PREPARED
uniqueness  refuses duplicate keys (23505)
upkeep      compacts and indexes tables after a commit
"""
