"""Codecs of foreign formats of logs, a package or a module each. They know bytes, and nothing of where objects are stored."""
