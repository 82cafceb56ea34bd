"""From rows of the change log to typed Parquet: the first half of every batch.

Takes: rows files of the log, the target table, which transactions count. Gives: data files of
the table, or staged changes; and the events that cannot be applied. Owns: conversion of
PostgreSQL's text to the target's types, the layout of staged changes.
Never: commits, or what several events of a key amount to.

Modules: ``changes`` (the layout), ``logrows`` (reading the log), ``convert``, ``rowchanges``,
``stage``. All but ``stage`` load without Spark: executors run them.
"""
