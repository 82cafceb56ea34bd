// Use a server through pgx in its default mode (extended protocol, cached statements, binary
// values) and print, one line a statement, what it answers. The same program is run at a node
// and at PostgreSQL, and must print the same lines.
//
// Usage: pgx CONNINFO
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

const columns = "id bigint primary key, i int, s smallint, t text, v varchar(20), c char(3)," +
	" b boolean, d date, ts timestamp, tz timestamptz, f float8, r real, n numeric(12,2)," +
	" u uuid, y bytea, j json, jb jsonb, a int[], ta text[], iv interval, tm time, ip inet"

const unicorn = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"

type database interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	Query(context.Context, string, ...any) (pgx.Rows, error)
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	pool, err := pgxpool.New(ctx, os.Args[1])
	if err != nil {
		fail(err)
	}
	defer pool.Close()
	run(ctx, pool, "create table of_pgx ("+columns+")")
	defer run(ctx, pool, "drop table of_pgx")
	write(ctx, pool)
	query(ctx, pool)
	scanned(ctx, pool)
	refused(ctx, pool)
	batch(ctx, pool)
	transactions(ctx, pool)
	catalogs(ctx, pool)
}

// values of all columns but the first.
func values() []any {
	return []any{
		7, int16(-3), "it's", "short", "c", true,
		time.Date(2026, 2, 28, 0, 0, 0, 0, time.UTC),
		time.Date(2026, 2, 28, 12, 30, 0, 250000, time.UTC),
		time.Date(2026, 2, 28, 12, 30, 0, 0, time.FixedZone("", 3600)),
		1.5, float32(0.25), numeric("12345.67"), unicorn, []byte{0, 255},
		json.RawMessage(`{"a":  1}`), map[string]any{"b": []int{1, 2}},
		[]int32{1, 2, 3}, []string{"x", "it's, \"so\""},
		pgtype.Interval{Months: 1, Days: 2, Microseconds: 3000000, Valid: true},
		pgtype.Time{Microseconds: 3723000000, Valid: true},
		netip.MustParsePrefix("10.0.0.0/8"),
	}
}

func write(ctx context.Context, db database) {
	insert := "insert into of_pgx values ($1"
	for i := range values() {
		insert += fmt.Sprintf(", $%d", i+2)
	}
	insert += ")"
	for id := 1; id <= 3; id++ {
		run(ctx, db, insert, append([]any{id}, values()...)...)
	}
	nulls := make([]any, len(values()))
	run(ctx, db, insert, append([]any{4}, nulls...)...)
	run(ctx, db, "insert into of_pgx (id, t) values ($1, $2), ($3, $4)", 5, "five", 6, "six")
	run(ctx, db, "insert into of_pgx (id, a) select $1, $2", 7, []int{})
	run(ctx, db, "update of_pgx set n = $1, tz = $2, jb = $3 where id = $4",
		numeric("0.10"), time.Unix(0, 0), nil, 2)
	run(ctx, db, "update of_pgx set i = coalesce(i, $1) + $2 where id = any($3)",
		10, 1, []int64{1, 4})
	run(ctx, db, "delete from of_pgx where t = $1", "six")
}

func query(ctx context.Context, db database) {
	run(ctx, db, "select * from of_pgx order by id")
	run(ctx, db, "select id from of_pgx where id = $1", 1)
	compared, against := conditions()
	run(ctx, db, "select "+compared+" from of_pgx where id < 4 order by id", against...)
	run(ctx, db, "select $1::bigint, $2::text, $3::date, $4::numeric, $5::bytea, $6::uuid", 1, "t",
		time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), numeric("1.50"), []byte("y"), unicorn)
	run(ctx, db, "select $1::int[], $2::text[], $3::jsonb, $4::timestamptz, $5::interval",
		[]int32{1, 2}, []*string{nil}, `{"k": null}`, time.Unix(1, 0), time.Minute)
	run(ctx, db, "select $1::int, $1::int is null", nil)
	run(ctx, db, "select id from of_pgx order by id limit $1 offset $2", 2, 1)
	run(ctx, db, "select $1 || t, count(*), sum(i), avg(n), max(tz), min(d), sum(n), sum(f),"+
		" array_agg(id order by id) from of_pgx where t like $2 or id > $3 group by t order by t",
		"> ", "it%", 3)
	run(ctx, db, "select a[1], array_length(a, 1), jb->'b', jb->>'b' from of_pgx where id = $1", 1)
	run(ctx, db, "select id from of_pgx where id = @id", pgx.NamedArgs{"id": 2})
	run(ctx, db, "select generate_series($1::int, $2::int)", 1, 3)
	run(ctx, db, "select now() > $1, current_date >= $2", time.Unix(0, 0), time.Unix(0, 0))
}

// conditions compares a column of each type with a parameter, in one query: each is a job of the
// node's engine.
func conditions() (string, []any) {
	compared := []struct {
		condition string
		value     any
	}{
		{"i between ? and 9", 7}, {"s = ?", -3}, {"t = ?", "it's"}, {"v = ?", "short"},
		{"c = ?", "c"}, {"b = ?", true}, {"d >= ?", time.Unix(0, 0)},
		{"ts > ?", time.Unix(0, 0)}, {"tz = ?", time.Unix(0, 0)}, {"f = ?", 1.5},
		{"r = ?", 0.25}, {"n > ?", numeric("0.5")}, {"n > ?", 0.5}, {"n = ?", "0.10"},
		{"u = ?", unicorn}, {"y = ?", []byte{0, 255}},
		{"a = ?", []int32{1, 2, 3}}, {"? = any(a)", 2}, {"? = any(ta)", "x"},
		{"id = any(?)", []int64{1, 3}}, {"id <> all(?)", []int64{1, 3}},
		{"t = any(?)", []string{"five"}}, {"u = any(?)", []string{unicorn}},
		{"iv > ?", pgtype.Interval{Days: 1, Valid: true}},
		{"tm = ?", pgtype.Time{Microseconds: 3723000000, Valid: true}},
		{"i is not distinct from ?", nil}, {"id in (?, 5)", 1},
	}
	var texts []string
	var values []any
	for i, one := range compared {
		texts = append(texts, strings.Replace(one.condition, "?", fmt.Sprintf("$%d", i+1), 1))
		values = append(values, one.value)
	}
	return strings.Join(texts, ", "), values
}

// scanned reads rows into a struct, as most programs do.
func scanned(ctx context.Context, db database) {
	type row struct {
		ID int64
		T  *string
		N  pgtype.Numeric
		TZ *time.Time
		A  []int32
		J  map[string]any
	}
	rows, err := db.Query(ctx, "select id, t, n, tz, a, j from of_pgx where id < $1 order by id", 5)
	if err != nil {
		fail(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[row])
	if err != nil {
		fail(err)
	}
	for _, one := range found {
		fmt.Println("scanned:", one.ID, one.A, text(one.N), one.J, one.T != nil, one.TZ != nil)
	}
}

func refused(ctx context.Context, db database) {
	run(ctx, db, "select * from of_pgx where nothing = $1", 1)
	run(ctx, db, "select * from nothing where id = $1", 1)
	run(ctx, db, "insert into of_pgx (id) values ($1)", 1)
	run(ctx, db, "select $1::int / $2", 1, 0)
	run(ctx, db, "insert into of_pgx (id, s) values ($1, $2::int)", 9, 1<<20)
	run(ctx, db, "select from of_pgx wher $1", 1)
	run(ctx, db, "select 1")
}

func batch(ctx context.Context, pool *pgxpool.Pool) {
	sent := &pgx.Batch{}
	sent.Queue("insert into of_pgx (id, t) values ($1, $2)", 20, "batch")
	sent.Queue("insert into of_pgx (id, t) values ($1, $2)", 21, "batch")
	sent.Queue("select id, t from of_pgx where id >= $1 order by id", 20)
	sent.Queue("delete from of_pgx where id = $1", 21)
	sent.Queue("select count(*) from of_pgx where t = $1", "batch")
	report(ctx, pool, sent)
	// One that fails takes the whole batch with it.
	sent = &pgx.Batch{}
	sent.Queue("insert into of_pgx (id, t) values ($1, $2)", 22, "lost")
	sent.Queue("insert into of_pgx (id, t) values ($1, $2)", 22, "twice")
	report(ctx, pool, sent)
	run(ctx, pool, "select id from of_pgx where id >= $1", 20)
}

func report(ctx context.Context, pool *pgxpool.Pool, sent *pgx.Batch) {
	results := pool.SendBatch(ctx, sent)
	for i := range sent.Len() {
		rows, err := results.Query()
		show(fmt.Sprintf("batch %d", i), rows, err)
	}
	fmt.Println("batch end:", problem(results.Close()))
}

func transactions(ctx context.Context, pool *pgxpool.Pool) {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		run(ctx, tx, "insert into of_pgx (id, t) values ($1, $2)", 30, "kept")
		run(ctx, tx, "select t from of_pgx where id = $1", 30)
		return nil
	})
	fmt.Println("committed:", problem(err))
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		run(ctx, tx, "delete from of_pgx where id = $1", 30)
		run(ctx, tx, "select count(*) from of_pgx where id = $1", 30)
		return errors.New("changed my mind")
	})
	fmt.Println("rolled back:", problem(err))
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, pool, options, func(tx pgx.Tx) error {
		run(ctx, tx, "select t from of_pgx where id = $1", 30)
		run(ctx, tx, "show transaction_isolation")
		run(ctx, tx, "update of_pgx set t = $1", "no")
		run(ctx, tx, "select 1")
		return nil
	})
	fmt.Println("read only:", problem(err))
}

func catalogs(ctx context.Context, db database) {
	run(ctx, db, "select relname, relkind from pg_class where relname = $1", "of_pgx")
	run(ctx, db, "select relname from pg_class where oid = $1::text::regclass", "of_pgx")
	run(ctx, db, "select attname, atttypid::regtype::text, attnotnull from pg_attribute"+
		" where attrelid = $1::text::regclass and attnum between $2 and $3 order by attnum",
		"of_pgx", 1, 3)
	run(ctx, db, "select table_name from information_schema.tables"+
		" where table_schema = $1 and table_name = any($2)", "public", []string{"of_pgx"})
	run(ctx, db, "select oid, typname from pg_type where typname = any($1) order by oid limit $2",
		[]string{"int4", "text", "numeric"}, 2)
	run(ctx, db, "select nspname from pg_namespace where nspname in ($1, $2) order by 1",
		"public", "pg_catalog")
	run(ctx, db, "select current_setting($1), current_schema()", "server_encoding")
	run(ctx, db, "select to_regclass($1) is not null, to_regclass($2) is null", "of_pgx", "none")
}

// run prints the rows of one statement, or its error.
func run(ctx context.Context, db database, sql string, args ...any) {
	rows, err := db.Query(ctx, sql, args...)
	show(sql, rows, err)
}

func show(what string, rows pgx.Rows, err error) {
	fmt.Println("#", what)
	if err != nil {
		fmt.Println("  error:", problem(err))
		return
	}
	defer rows.Close()
	for i, field := range rows.FieldDescriptions() {
		if i == 0 {
			fmt.Print("  ")
		}
		fmt.Print(field.Name, ":", field.DataTypeOID, ":", field.TypeModifier, ":", field.Format, " ")
	}
	if len(rows.FieldDescriptions()) > 0 {
		fmt.Println()
	}
	for rows.Next() {
		found, err := rows.Values()
		if err != nil {
			fmt.Println("  cannot be read:", err)
			continue
		}
		shown := make([]string, len(found))
		for i, value := range found {
			shown[i] = text(value)
		}
		fmt.Println("  ", strings.Join(shown, " | "))
	}
	if err := rows.Err(); err != nil {
		fmt.Println("  error:", problem(err))
		return
	}
	fmt.Println("  ", rows.CommandTag())
}

func text(value any) string {
	switch known := value.(type) {
	case time.Time:
		return known.UTC().Format(time.RFC3339Nano)
	case pgtype.Numeric:
		found, _ := known.Value()
		return fmt.Sprint(found)
	case []any:
		parts := make([]string, len(known))
		for i, one := range known {
			parts[i] = text(one)
		}
		return fmt.Sprint(parts)
	default:
		return fmt.Sprintf("%v", value)
	}
}

// problem is what the server said, or the driver.
func problem(err error) string {
	var said *pgconn.PgError
	switch {
	case err == nil:
		return "none"
	case errors.As(err, &said):
		return strings.Join([]string{said.Code, said.Message, said.Detail, said.Hint}, " | ")
	default:
		return err.Error()
	}
}

func numeric(digits string) pgtype.Numeric {
	var found pgtype.Numeric
	if err := found.Scan(digits); err != nil {
		fail(err)
	}
	return found
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
