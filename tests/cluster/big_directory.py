"""Makes a directory of many people and nested groups in a slapd of its own; can cut it off, too.

Run in the container of LDAP: `big_directory.py FOLDER PEOPLE GROUPS` starts slapd on port 3890;
`big_directory.py FOLDER cut PORT BYTES TIMES` passes port PORT on to it and cuts the first TIMES
connections after so many bytes of answers. What it started ends when its standard input does.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

BASE = "dc=big,dc=example"
PORT = 3890
CONFIG = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/nis.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
loglevel none
TLSCACertificateFile /etc/ldap/tls/ca.pem
TLSCertificateFile /etc/ldap/tls/ldap.pem
TLSCertificateKeyFile /etc/ldap/tls/ldap.key
security simple_bind=128
database mdb
suffix "{base}"
rootdn "cn=admin,{base}"
rootpw secret
directory {folder}/db
maxsize 1073741824
"""


def ldif(people: int, groups: int) -> str:
    """Groups in a ring: each is in the one before, so everybody is in all of them."""
    units = "".join(
        f"dn: ou={unit},{BASE}\nobjectClass: organizationalUnit\nou: {unit}\n\n"
        for unit in ("people", "research")
    )
    top = f"dn: {BASE}\nobjectClass: dcObject\nobjectClass: organization\ndc: big\no: big\n\n"
    each = people // groups
    ring = (group(number, groups, each) for number in range(groups))
    return top + units + "".join(map(person, range(people))) + "".join(ring)


def person(number: int) -> str:
    return (
        f"dn: uid=p{number},ou=people,{BASE}\n"
        "objectClass: inetOrgPerson\nobjectClass: posixAccount\n"
        f"uid: p{number}\ncn: Person {number}\nsn: {number}\nmail: p{number}@big.example\n"
        f"uidNumber: {100000 + number}\ngidNumber: 1\nhomeDirectory: /home/p{number}\n"
        f"departmentNumber: D{number % 20}\n\n"
    )


def group(number: int, groups: int, each: int) -> str:
    names = [f"uid=p{number * each + one},ou=people" for one in range(each)]
    members = [*names, f"cn=g{(number + 1) % groups},ou=research"]
    lines = "".join(f"member: {name},{BASE}\n" for name in members)
    return (
        f"dn: cn=g{number},ou=research,{BASE}\nobjectClass: groupOfNames\ncn: g{number}\n"
        f"owner: {names[0]},{BASE}\n{lines}\n"
    )


def serve(folder: Path, people: int, groups: int) -> None:
    (folder / "db").mkdir()
    config = folder / "slapd.conf"
    config.write_text(CONFIG.format(base=BASE, folder=folder), "utf-8")
    made = ["slapadd", "-q", "-f", str(config)]
    subprocess.run(made, input=ldif(people, groups), text=True, check=True)
    server = subprocess.Popen(["slapd", "-d", "none", "-h", f"ldap://:{PORT}", "-f", str(config)])
    ready(PORT)
    sys.stdin.read()
    server.terminate()
    server.wait()


def ready(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            continue
        print("ready", flush=True)
        return


def cut(port: int, size: int, times: int) -> None:
    door = socket.create_server(("", port))
    print("ready", flush=True)
    threading.Thread(target=end_with_input, daemon=True).start()
    while True:
        client, _ = door.accept()
        server = socket.create_connection(("127.0.0.1", PORT))
        left = size if times > 0 else sys.maxsize
        times -= 1
        threading.Thread(target=carry, args=(client, server, sys.maxsize), daemon=True).start()
        threading.Thread(target=carry, args=(server, client, left), daemon=True).start()


def carry(source: socket.socket, target: socket.socket, left: int) -> None:
    """Pass bytes on until there are no more, or none left to pass; then end both."""
    with contextlib.suppress(OSError):
        while left > 0 and (some := source.recv(min(65536, left))):
            target.sendall(some)
            left -= len(some)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[2] == "cut":
        cut(*map(int, sys.argv[3:]))
    else:
        serve(Path(sys.argv[1]), *map(int, sys.argv[2:]))
