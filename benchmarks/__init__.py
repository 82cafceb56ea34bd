"""What ``make bench`` runs: the product's speed and memory, beside a native subscriber's.

Takes: names of workloads, a scale. Gives: a table and a JSON file of figures, each with its
ratio to PostgreSQL's own subscriber measured in the same run. Owns: the servers and the node
that it starts, until they are removed. Never: decides whether a test passes.

``python -m benchmarks`` is ``__main__``; ``workload`` says what rows there are, ``stage`` starts
what they run on, ``copying``, ``backlog``, ``nullmodes``, ``latency``, ``idle`` and ``decoding``
are the workloads, ``usage`` counts CPU and memory, ``report`` does the arithmetic.
"""
