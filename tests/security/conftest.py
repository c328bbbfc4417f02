"""Fixtures of the other folders: apps on a server, commands in this process."""

from __future__ import annotations

from tests.behaviour.conftest import make_app
from tests.cli.conftest import Scene, headrace, nowhere, run_here, scene

__all__ = ["Scene", "headrace", "make_app", "nowhere", "run_here", "scene"]
