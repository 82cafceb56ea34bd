-- At the node: a role that may read metrics, and the subscription. What is there already stays.
\set ON_ERROR_STOP on
\getenv source SOURCE
\set prometheus `cat "$SECRETS/prometheus_password"`
\set password `cat "$SECRETS/source_password"`
select :'source' || ' password=''' || replace(replace(:'password', '\', '\\'), '''', '\''') || ''''
    as source \gset

select count(*) = 0 as missing from pg_roles where rolname = 'prometheus' \gset
\if :missing
create role prometheus login password :'prometheus' in role pg_monitor;
\endif

select count(*) = 0 as missing from pg_subscription where subname = 'shop' \gset
\if :missing
create subscription shop connection :'source' publication shop;
\endif
