"""The table port on Delta Lake.

Takes: locations, fields, finished Parquet files, cursors. Gives: versions that survive a power
cut. Owns: the order of commits in this process. Never: what the rows mean, or which ones to write.

    tables       the port; it writes plain versions with ``lake.delta.log``, others with Delta
    creation     a table's version 0
    jvm          calls of Delta's own code
    uniqueness   are the keys of files that join a table unique?
    rows         columns of data files as a DataFrame
"""
