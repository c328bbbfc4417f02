"""The only package that imports the Redis client: connections, commands, scripts, and what servers answer."""
