"""Commands that end a subscription's workers and give up its slot, in durable steps.

Takes: a subscription, which its caller has for itself. Gives: the command done, or undone, or
marked in the catalog. Owns: the marks, and what becomes of them after a crash. Never: asks what is
published.

    drop         DROP SUBSCRIPTION; how workers and copies are ended
    recopy       REFRESH PUBLICATION WITH (recopy = true)
    unfinished   what a crash has left of these and of CREATE
"""
