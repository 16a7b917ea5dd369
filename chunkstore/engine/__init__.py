"""The engine: a container that is owned, followed or asked, and the readers and writers of its segments."""
