"""The methods of ``Catalog``, by subject.

Takes: records. Gives: records. Owns: the beginning and end of transactions. Never: has SQL of its
own, calls a method of another part.

    objects         roles, schemas, tables, comments
    subscriptions   changes of subscriptions by commands
    attempts        errors of workers
    copies          relation states, copies of tables
    histories       files of history tables whose table is being committed
    published       the states that readers see, the floor
    part            the base class, with the file
"""
