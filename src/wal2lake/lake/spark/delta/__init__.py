"""The table port on Delta Lake.

Takes: locations, fields, finished Parquet files, cursors. Gives: versions that survive a power
cut. Owns: the order of commits in this process. Never: interprets rows, or decides which rows to
write.

    deltatables  the port; it writes plain versions with ``lake.delta.log``, others with Delta
    creation     a table's version 0
    jvm          calls of Delta's own code
    uniqueness   finds repeated keys in files that join a table
    filerows     columns of data files as a DataFrame
"""
