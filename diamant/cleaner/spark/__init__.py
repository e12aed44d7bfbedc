"""What runs on Apache Spark: the data source over log files, analyses of whole directories, and cleaning.

Nothing here is imported before somebody asks for Spark; pyspark and pyarrow come with the extra `spark`.
"""
