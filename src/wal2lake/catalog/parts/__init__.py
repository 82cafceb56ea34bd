"""The methods of ``Catalog``, by what they are about.

Takes: records. Gives: records. Owns: where transactions begin and end. Never: has SQL of its own,
calls a method of another part.

    objects         roles, schemas, tables, comments
    subscriptions   as commands change them
    attempts        what stops their workers
    copies          relation states, copies of tables
    published       what readers see, the floor
    part            what each of them has: the file
"""
