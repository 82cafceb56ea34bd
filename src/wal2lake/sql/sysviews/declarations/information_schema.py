"""The columns of information_schema's views, as PostgreSQL 18 declares them.

Comes in: nothing. Goes out: ``VIEWS``, text that ``relations`` reads. Domains are given as their
base types, as RowDescription has them: sql_identifier is name, character_data and
yes_or_no are varchar (with a typmod in parentheses), cardinal_number is int4.

Generated from pg_attribute of a server; a test compares it with one.
Source: src/backend/catalog/information_schema.sql.
"""

from __future__ import annotations

from typing import Final

VIEWS: Final = """
applicable_roles
    grantee name, role_name name, is_grantable varchar(7)
character_sets
    character_set_catalog name, character_set_schema name, character_set_name name,
    character_repertoire name, form_of_use name, default_collate_catalog name,
    default_collate_schema name, default_collate_name name
check_constraint_routine_usage
    constraint_catalog name, constraint_schema name, constraint_name name, specific_catalog
    name, specific_schema name, specific_name name
check_constraints
    constraint_catalog name, constraint_schema name, constraint_name name, check_clause varchar
collations
    collation_catalog name, collation_schema name, collation_name name, pad_attribute varchar
column_domain_usage
    domain_catalog name, domain_schema name, domain_name name, table_catalog name, table_schema
    name, table_name name, column_name name
column_privileges
    grantor name, grantee name, table_catalog name, table_schema name, table_name name,
    column_name name, privilege_type varchar, is_grantable varchar(7)
column_udt_usage
    udt_catalog name, udt_schema name, udt_name name, table_catalog name, table_schema name,
    table_name name, column_name name
columns
    table_catalog name, table_schema name, table_name name, column_name name, ordinal_position
    int4, column_default varchar, is_nullable varchar(7), data_type varchar,
    character_maximum_length int4, character_octet_length int4, numeric_precision int4,
    numeric_precision_radix int4, numeric_scale int4, datetime_precision int4, interval_type
    varchar, interval_precision int4, character_set_catalog name, character_set_schema name,
    character_set_name name, collation_catalog name, collation_schema name, collation_name name,
    domain_catalog name, domain_schema name, domain_name name, udt_catalog name, udt_schema
    name, udt_name name, scope_catalog name, scope_schema name, scope_name name,
    maximum_cardinality int4, dtd_identifier name, is_self_referencing varchar(7), is_identity
    varchar(7), identity_generation varchar, identity_start varchar, identity_increment varchar,
    identity_maximum varchar, identity_minimum varchar, identity_cycle varchar(7), is_generated
    varchar, generation_expression varchar, is_updatable varchar(7)
constraint_column_usage
    table_catalog name, table_schema name, table_name name, column_name name, constraint_catalog
    name, constraint_schema name, constraint_name name
constraint_table_usage
    table_catalog name, table_schema name, table_name name, constraint_catalog name,
    constraint_schema name, constraint_name name
domain_constraints
    constraint_catalog name, constraint_schema name, constraint_name name, domain_catalog name,
    domain_schema name, domain_name name, is_deferrable varchar(7), initially_deferred
    varchar(7)
domains
    domain_catalog name, domain_schema name, domain_name name, data_type varchar,
    character_maximum_length int4, character_octet_length int4, character_set_catalog name,
    character_set_schema name, character_set_name name, collation_catalog name, collation_schema
    name, collation_name name, numeric_precision int4, numeric_precision_radix int4,
    numeric_scale int4, datetime_precision int4, interval_type varchar, interval_precision int4,
    domain_default varchar, udt_catalog name, udt_schema name, udt_name name, scope_catalog
    name, scope_schema name, scope_name name, maximum_cardinality int4, dtd_identifier name
element_types
    object_catalog name, object_schema name, object_name name, object_type varchar,
    collection_type_identifier name, data_type varchar, character_maximum_length int4,
    character_octet_length int4, character_set_catalog name, character_set_schema name,
    character_set_name name, collation_catalog name, collation_schema name, collation_name name,
    numeric_precision int4, numeric_precision_radix int4, numeric_scale int4, datetime_precision
    int4, interval_type varchar, interval_precision int4, udt_catalog name, udt_schema name,
    udt_name name, scope_catalog name, scope_schema name, scope_name name, maximum_cardinality
    int4, dtd_identifier name
enabled_roles
    role_name name
foreign_tables
    foreign_table_catalog name, foreign_table_schema name, foreign_table_name name,
    foreign_server_catalog name, foreign_server_name name
information_schema_catalog_name
    catalog_name name
key_column_usage
    constraint_catalog name, constraint_schema name, constraint_name name, table_catalog name,
    table_schema name, table_name name, column_name name, ordinal_position int4,
    position_in_unique_constraint int4
parameters
    specific_catalog name, specific_schema name, specific_name name, ordinal_position int4,
    parameter_mode varchar, is_result varchar(7), as_locator varchar(7), parameter_name name,
    data_type varchar, character_maximum_length int4, character_octet_length int4,
    character_set_catalog name, character_set_schema name, character_set_name name,
    collation_catalog name, collation_schema name, collation_name name, numeric_precision int4,
    numeric_precision_radix int4, numeric_scale int4, datetime_precision int4, interval_type
    varchar, interval_precision int4, udt_catalog name, udt_schema name, udt_name name,
    scope_catalog name, scope_schema name, scope_name name, maximum_cardinality int4,
    dtd_identifier name, parameter_default varchar
referential_constraints
    constraint_catalog name, constraint_schema name, constraint_name name,
    unique_constraint_catalog name, unique_constraint_schema name, unique_constraint_name name,
    match_option varchar, update_rule varchar, delete_rule varchar
role_column_grants
    grantor name, grantee name, table_catalog name, table_schema name, table_name name,
    column_name name, privilege_type varchar, is_grantable varchar(7)
role_table_grants
    grantor name, grantee name, table_catalog name, table_schema name, table_name name,
    privilege_type varchar, is_grantable varchar(7), with_hierarchy varchar(7)
routine_privileges
    grantor name, grantee name, specific_catalog name, specific_schema name, specific_name name,
    routine_catalog name, routine_schema name, routine_name name, privilege_type varchar,
    is_grantable varchar(7)
routines
    specific_catalog name, specific_schema name, specific_name name, routine_catalog name,
    routine_schema name, routine_name name, routine_type varchar, module_catalog name,
    module_schema name, module_name name, udt_catalog name, udt_schema name, udt_name name,
    data_type varchar, character_maximum_length int4, character_octet_length int4,
    character_set_catalog name, character_set_schema name, character_set_name name,
    collation_catalog name, collation_schema name, collation_name name, numeric_precision int4,
    numeric_precision_radix int4, numeric_scale int4, datetime_precision int4, interval_type
    varchar, interval_precision int4, type_udt_catalog name, type_udt_schema name, type_udt_name
    name, scope_catalog name, scope_schema name, scope_name name, maximum_cardinality int4,
    dtd_identifier name, routine_body varchar, routine_definition varchar, external_name
    varchar, external_language varchar, parameter_style varchar, is_deterministic varchar(7),
    sql_data_access varchar, is_null_call varchar(7), sql_path varchar, schema_level_routine
    varchar(7), max_dynamic_result_sets int4, is_user_defined_cast varchar(7),
    is_implicitly_invocable varchar(7), security_type varchar, to_sql_specific_catalog name,
    to_sql_specific_schema name, to_sql_specific_name name, as_locator varchar(7), created
    timestamptz(2), last_altered timestamptz(2), new_savepoint_level varchar(7),
    is_udt_dependent varchar(7), result_cast_from_data_type varchar, result_cast_as_locator
    varchar(7), result_cast_char_max_length int4, result_cast_char_octet_length int4,
    result_cast_char_set_catalog name, result_cast_char_set_schema name,
    result_cast_char_set_name name, result_cast_collation_catalog name,
    result_cast_collation_schema name, result_cast_collation_name name,
    result_cast_numeric_precision int4, result_cast_numeric_precision_radix int4,
    result_cast_numeric_scale int4, result_cast_datetime_precision int4,
    result_cast_interval_type varchar, result_cast_interval_precision int4,
    result_cast_type_udt_catalog name, result_cast_type_udt_schema name,
    result_cast_type_udt_name name, result_cast_scope_catalog name, result_cast_scope_schema
    name, result_cast_scope_name name, result_cast_maximum_cardinality int4,
    result_cast_dtd_identifier name
schemata
    catalog_name name, schema_name name, schema_owner name, default_character_set_catalog name,
    default_character_set_schema name, default_character_set_name name, sql_path varchar
sequences
    sequence_catalog name, sequence_schema name, sequence_name name, data_type varchar,
    numeric_precision int4, numeric_precision_radix int4, numeric_scale int4, start_value
    varchar, minimum_value varchar, maximum_value varchar, increment varchar, cycle_option
    varchar(7)
table_constraints
    constraint_catalog name, constraint_schema name, constraint_name name, table_catalog name,
    table_schema name, table_name name, constraint_type varchar, is_deferrable varchar(7),
    initially_deferred varchar(7), enforced varchar(7), nulls_distinct varchar(7)
table_privileges
    grantor name, grantee name, table_catalog name, table_schema name, table_name name,
    privilege_type varchar, is_grantable varchar(7), with_hierarchy varchar(7)
tables
    table_catalog name, table_schema name, table_name name, table_type varchar,
    self_referencing_column_name name, reference_generation varchar, user_defined_type_catalog
    name, user_defined_type_schema name, user_defined_type_name name, is_insertable_into
    varchar(7), is_typed varchar(7), commit_action varchar
triggered_update_columns
    trigger_catalog name, trigger_schema name, trigger_name name, event_object_catalog name,
    event_object_schema name, event_object_table name, event_object_column name
triggers
    trigger_catalog name, trigger_schema name, trigger_name name, event_manipulation varchar,
    event_object_catalog name, event_object_schema name, event_object_table name, action_order
    int4, action_condition varchar, action_statement varchar, action_orientation varchar,
    action_timing varchar, action_reference_old_table name, action_reference_new_table name,
    action_reference_old_row name, action_reference_new_row name, created timestamptz(2)
udt_privileges
    grantor name, grantee name, udt_catalog name, udt_schema name, udt_name name, privilege_type
    varchar, is_grantable varchar(7)
user_defined_types
    user_defined_type_catalog name, user_defined_type_schema name, user_defined_type_name name,
    user_defined_type_category varchar, is_instantiable varchar(7), is_final varchar(7),
    ordering_form varchar, ordering_category varchar, ordering_routine_catalog name,
    ordering_routine_schema name, ordering_routine_name name, reference_type varchar, data_type
    varchar, character_maximum_length int4, character_octet_length int4, character_set_catalog
    name, character_set_schema name, character_set_name name, collation_catalog name,
    collation_schema name, collation_name name, numeric_precision int4, numeric_precision_radix
    int4, numeric_scale int4, datetime_precision int4, interval_type varchar, interval_precision
    int4, source_dtd_identifier name, ref_dtd_identifier name
view_column_usage
    view_catalog name, view_schema name, view_name name, table_catalog name, table_schema name,
    table_name name, column_name name
view_table_usage
    view_catalog name, view_schema name, view_name name, table_catalog name, table_schema name,
    table_name name
views
    table_catalog name, table_schema name, table_name name, view_definition varchar,
    check_option varchar, is_updatable varchar(7), is_insertable_into varchar(7),
    is_trigger_updatable varchar(7), is_trigger_deletable varchar(7), is_trigger_insertable_into
    varchar(7)
"""
