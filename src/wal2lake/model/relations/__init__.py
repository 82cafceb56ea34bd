"""Describes tables: published relations, partitions, the publisher's catalog.

relation      relations as a publisher sends them
remoteschema  the publisher's catalog about a relation
partition     partition keys and bounds
"""
