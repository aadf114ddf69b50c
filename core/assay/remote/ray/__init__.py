"""assay on a Ray cluster: reward pools and engines as actors.

Ray places processes and tells when one is gone; deadlines, retries, exactly-once counting and respawning are assay's
own, since a Ray actor cannot be interrupted from outside and a retried actor call may run twice. What
travels are plain values, contracts as JSON. Ray is imported only when a cluster is asked for.
"""
