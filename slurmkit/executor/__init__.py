"""Python functions as jobs, behind the interface of `concurrent.futures`."""
