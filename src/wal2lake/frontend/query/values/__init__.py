"""Values of PostgreSQL's types in Spark's terms.

Takes: operands (expressions with types), texts of constants. Gives: Spark expressions that
are what PostgreSQL would have. Owns: nothing. Never: looks at a query, only at one
expression's parts.

    types       ``Type`` and ``Operand``; start here
    casts       conversions, asked for and implied
    assign      conversions to what a column stores
    literals    constants; ``jsontext`` those of json and jsonb
    numeric     exact order, sums and quotients
    moments     dates, times, zones
    intervals   their fields, order and text
    output      values as text; ``texts`` as values
"""
