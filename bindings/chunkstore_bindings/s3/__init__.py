"""Chunks as objects of S3 and of servers that speak like it: ``s3://BUCKET/PREFIX?endpoint_url=...`` (extra ``s3``).

* ``options``: what a root says. ``session``: the SDK, wired. ``client``: requests, deadlines, pacing, counts.
* ``refusals``: what answers mean.
* ``sending``: put-if-absent and puts. ``multipart``, ``joining``: large and joined objects. ``reading``, ``listing``.
* ``lifecycle``: the bucket's own rules. ``storage``: all of the port.
"""
