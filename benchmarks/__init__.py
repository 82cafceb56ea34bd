"""What ``make bench`` runs: the product's speed and memory, beside a native subscriber's.

Takes: names of workloads, a scale. Gives: a table and a JSON file of figures, each with its
ratio to PostgreSQL's own subscriber measured in the same run. Owns: the servers and the node
that it starts, until they are removed. Never: decides whether a test passes.

``python -m benchmarks`` is ``__main__``; ``workload`` says what rows there are, ``stage`` starts
what they run on; the workloads are in ``changes`` and ``copies``,
``applying``, ``publishing`` and ``operating``; ``positions`` watches what has
arrived, ``usage`` counts CPU and memory, ``heap`` asks a JVM for its own, ``report`` does the
arithmetic.
"""
