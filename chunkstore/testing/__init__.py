"""What chunkstore ships for testing: contract suites that other people's parts inherit. Needs the ``testing`` extra."""

__all__: list[str] = []
