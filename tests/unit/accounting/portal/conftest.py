"""Each test has an application of its own; all of a process share the compiled templates."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType

import pytest
from flask import Flask
from jinja2 import BytecodeCache, Environment
from jinja2.bccache import Bucket


class TemplatesInMemory(BytecodeCache):
    """Compiled templates by file and source."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType | None] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        """Find a template that was compiled before."""
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep a compiled template."""
        self._codes[bucket.key, bucket.checksum] = bucket.code


@pytest.fixture(scope="session", autouse=True)
def _compile_templates_once() -> Iterator[None]:
    templates, create = TemplatesInMemory(), Flask.create_jinja_environment

    def create_with_templates(app: Flask) -> Environment:
        environment = create(app)
        environment.bytecode_cache = templates
        return environment

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flask, "create_jinja_environment", create_with_templates)
        yield
