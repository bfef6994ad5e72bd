"""The commands that answer questions about a problem, and the options that describe one."""
