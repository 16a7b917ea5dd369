"""Real chaos: processes that fight for one container, and a judge that knows what each of them was told.

``python -m tests.chaos`` starts several real processes over one container on a file system. Each opens it
(and so takes it over), runs clients inside, and is killed (``SIGKILL``), stopped and woken as a zombie
(``SIGSTOP``/``SIGCONT``), starved of disk space, robbed of its metadata cache. Every process keeps a log of its own of what it tried
and what it was told; at intervals everybody is stopped and the logs are compared with what is there.
Leaves out: power cuts (the simulator has them), storages other than file systems.
"""
