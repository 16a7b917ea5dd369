"""What the S3 servers have in common: an address, credentials, buckets, and the root URL that the binding is given."""

from __future__ import annotations

import itertools
import os
from typing import Any
from urllib.parse import quote

__all__ = ["CREDENTIALS", "S3Server"]

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "chunkstore-test",
    "AWS_SECRET_ACCESS_KEY": "not/A+Secret-outside-tests",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}
"""The environment for every process that talks to a server under test."""

_numbers = itertools.count(1)


class S3Server:
    """A running server. ``client`` is a plain boto3 client: what tests look at the server with, past the binding."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._client: Any = None

    @property
    def client(self) -> Any:
        if self._client is None:
            self._client = self.new_client()
        return self._client

    def new_client(self, port: int | None = None, **settings: Any) -> Any:
        """Another client, with retries off; ``port`` may be a proxy's."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port or self.port}",
            region_name=CREDENTIALS["AWS_DEFAULT_REGION"],
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            config=Config(
                s3={"addressing_style": "path"},
                retries={"total_max_attempts": 1},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                max_pool_connections=32,
                **settings,
            ),
        )

    def make_bucket(self) -> str:
        """A fresh, empty bucket."""
        name = f"chunkstore-{os.getpid()}-{next(_numbers)}"
        self.client.create_bucket(Bucket=name)
        return name

    def root(self, bucket: str, prefix: str = "", *, port: int | None = None, **options: object) -> str:
        """The root's URL; ``port`` may be a proxy's, ``options`` go into the query."""
        query = {"endpoint_url": f"http://127.0.0.1:{port or self.port}", **options}
        text = "&".join(f"{name}={quote(str(value), safe=':/')}" for name, value in query.items())
        return f"s3://{bucket}{'/' + prefix if prefix else ''}?{text}"

    def stop(self) -> None:
        """End the server and everything it holds. Safe to repeat."""
        if self._client is not None:
            self._client.close()
            self._client = None
