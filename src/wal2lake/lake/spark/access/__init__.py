"""Access of Spark to tables in an object store, by Hadoop's connectors.

Takes: the URL of a warehouse, the options of the store's client, the environment. Gives: jars,
settings, options and variables of the JVM. Owns: the names of the connectors' settings, the file
with the command for credentials, the server of a command's tokens. Never: has a secret among the
settings of Spark, which its page shows.

    clouds       the choice of the cloud
    s3           Amazon S3 and what speaks its protocol
    azure        Azure
    google       Google Cloud Storage
    tokenserver  tokens of a command, for Azure and Google
    needs        what each cloud's module gives
"""

from wal2lake.lake.spark.access.clouds import access_to

__all__ = ["access_to"]
