"""Runs on the login node: sends one sealed query to the ledger, and prints what came back.

python query_driver.py query|for-root|no-query|cut TIMES
"""

from __future__ import annotations

import http.client
import pwd
import sys

from slurmkit_accounting.remote.protocol import ServiceQuery, open_answer, seal, seal_query

keeper = pwd.getpwnam("slurmkit").pw_uid
query = ServiceQuery("usage", {"begin": "2020-01-01", "end": "2100-01-01", "by": ["user"]})
kind, times = sys.argv[1], int(sys.argv[2])
sealed = {
    "query": lambda: seal_query(query, service=keeper),
    "for-root": lambda: seal_query(query, service=0),
    "no-query": lambda: seal(b"{}", reader=keeper),
    "cut": lambda: seal_query(query, service=keeper)[:-9] + b"AAAA:",
}[kind]()
for _ in range(times):
    connection = http.client.HTTPConnection("ledger", 6830, timeout=300)
    connection.request("POST", "/v1/query", sealed)
    response = connection.getresponse()
    body = response.read()
    if response.status == 200:
        body = open_answer(body.splitlines(), query.nonce, service=keeper).seen_as.encode()
    print(response.status, body.decode())
