"""A subscription's options about types, values and conflicts.

Takes: the options ``type_mappings``, ``value_policies`` and ``conflict_resolution`` as text;
columns of the publisher; converted columns. Gives: the stored type of a column; the treatment of
values that it cannot hold; the resolution of conflicts. Owns: the syntax of the options, and which
choices are possible. Never: defines a default mapping (``pgtypes.mapping``), changes a value
without a declared policy.

    entries      ``target = choice, ...``: the syntax of type_mappings and value_policies
    types        type_mappings: the type with which a column is created
    policies     value_policies: error, null, clamp, lossless, text, widen
    resolutions  conflict_resolution: the treatment of a change that conflicts with a row
    coerce       conversion of a column under its policy
    clamp        the nearest value that a type can hold
    remedies     the HINT of an error about a value
"""
