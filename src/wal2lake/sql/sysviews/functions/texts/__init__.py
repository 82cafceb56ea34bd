"""Functions of texts.

Takes: values of a query. Gives: texts, and values read from texts. Owns: nothing. Never: looks a
name up.

    text    quoting, format(), arrays in one text, text of bytes
    typed   dates, times, intervals and numbers with their types' modifiers
"""
