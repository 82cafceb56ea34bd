-- At the source, once, in database app: a table, its publication, and the node's role.
\set ON_ERROR_STOP on
\set password `cat "${SECRETS:-/run/secrets}/source_password"`

create role lake login replication password :'password';

create table orders (
    id bigint generated always as identity primary key,
    item text not null,
    price numeric(10, 2) not null
);
insert into orders (item, price) values ('tea', 2.50), ('coffee', 3.20);
grant select on orders to lake;
create publication shop for table orders;
