"""PostgreSQL's binary format to canonical text and to typed Arrow.

Takes: values as the publisher's send functions wrote them, the type that they have there,
what the publisher says of types that are not built in. Gives: the text that the same value
has in text format; typed Arrow, the same as from that text; why a type has no decoder.
Owns: the decoders. Never: stores a value that text format would not have stored, guesses at
a format that it does not know.

    columns      ``sent_to_arrow``: a column, by kernels where there is one, else by its text
    kernels      fixed-width types and text, whole columns with NumPy
    decimals     numeric to decimal(p,s), whole columns with NumPy
    arrays       one-dimensional arrays, whole columns with NumPy
    remote       types that are not built in, and which decoder a type has
    value/       one value to text
"""
