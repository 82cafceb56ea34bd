"""One step of an apply worker: one batch into all tables of a subscription.

Takes: the log, the participating tables. Gives: commits of the tables, published at one position.
Owns: the choice of the batch, the order of evaluation, followed alterations, commits and
publication. Never: waits for the publisher, decides when the next step is made.

    nextbatch    chooses the next batch, or finds other work; start here
    applier      evaluates a batch, cuts it below a failure, commits, publishes
    tablestager  stages the parts of several tables at once
    batchwork    values of a batch while it is evaluated and committed
    publishing   floor, vector and states as one
    restarts     sequences that a replicated TRUNCATE restarts
    repairs      rows of the source that are written over rows that differ
    statemarks   positions whose exact state a session asks for
    visiblepositions  up to where readers see everything, for sessions that wait
"""
