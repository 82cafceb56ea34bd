"""PostgreSQL's binary format to canonical text and to typed Arrow.

Takes: values from the publisher's send functions, their types at the publisher, the publisher's
facts about types that are not built in. Gives: the text of the same value in text format; typed
Arrow, equal to that from the text; the reason why a type has no decoder. Owns: the decoders. Never:
stores a value that text format would not have stored, guesses an unknown format.

    columns      ``sent_to_arrow``: a column, by a kernel if there is one, otherwise by its text
    kernels      fixed-width types and text, whole columns with NumPy
    decimals     numeric to decimal(p,s), whole columns with NumPy
    arrays       one-dimensional arrays, whole columns with NumPy
    remote       types that are not built in, and the decoder of each type
    value/       one value to text
"""
