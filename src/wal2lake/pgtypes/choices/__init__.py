"""Reads a subscription's choices about types and values.

Takes: the options ``type_mappings``, ``value_policies`` and
``conflict_resolution`` as text; columns of the publisher;
columns that have been converted. Gives: the type that a column is stored as; what happens to
values that it cannot hold. Owns: the syntax of both options, which choices are possible.
Never: a default mapping (``pgtypes.mapping``), a change that nobody declared.

    entries    ``target = choice, ...``: the syntax that both options share
    types      type_mappings: the type that a column is created with
    policies   value_policies: error, null, clamp, lossless, text
    resolutions  conflict_resolution: what becomes of a change that meets another row
    coerce     a converted column under its policy
    clamp      the nearest value that a type can hold
    remedies   the HINT of an error about a value
"""
