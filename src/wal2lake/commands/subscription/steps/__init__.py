"""Commands that end a subscription's workers and give up its slot, in durable steps.

Takes: a subscription, whose turn the caller holds. Gives: the command done, or undone, or marked in
the catalog. Owns: the marks, and their treatment after a crash. Never: asks what is published.

    drop         DROP SUBSCRIPTION; how workers and copies are ended
    recopy       REFRESH PUBLICATION WITH (recopy = true)
    unfinished   completes or undoes these and CREATE after a crash
"""
