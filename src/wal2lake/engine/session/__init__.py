"""Executes one client session's statements.

lakebackend       the ``Backend`` of a session: each statement to the part that answers it
tablenames        the version of each table that a statement reads
parametertypes    the types of parameters, and their values as text
blockdefinitions  definitions that a transaction block has made
sessionroles      SET ROLE and SET SESSION AUTHORIZATION
copies            COPY around its query
"""
