"""People and groups as a directory gives them, in few words."""

from __future__ import annotations

from slurmkit_accounting.people.model import GroupEntry, PersonEntry


def person(name: str, **other: object) -> PersonEntry:
    values = {
        "dn": f"uid={name}",
        "directory_id": f"id-{name}",
        "username": name,
        "uid": sum(name.encode()),
        "display_name": name.title(),
        "mail": f"{name}@lab.example",
        "active": True,
    }
    return PersonEntry(**(values | other))  # type: ignore[arg-type]


def group(name: str, *members: str, owners: tuple[str, ...] = (), **other: object) -> GroupEntry:
    values = {"dn": f"cn={name}", "directory_id": f"id-{name}", "name": name}
    dns = {"members": members, "owners": tuple(f"uid={one}" for one in owners)}
    return GroupEntry(**(values | dns | other))  # type: ignore[arg-type]
