"""Real processes that fight for one container, and are stopped, killed and short of disk meanwhile: nothing acknowledged is lost."""
