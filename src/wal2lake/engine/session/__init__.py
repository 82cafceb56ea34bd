"""Executes one client session's statements.

lakebackend       the ``Backend`` of a session: routes each statement
tablenames        the version of each table that a statement reads
parametertypes    the types of parameters, and their values as text
blockdefinitions  definitions that a transaction block has made
sessionroles      SET ROLE and SET SESSION AUTHORIZATION
copies            COPY, with its options, around its query
"""
