"""Run Python functions as jobs, through the interface of `concurrent.futures`."""
