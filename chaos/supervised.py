"""The same app for `headrace run chaos.supervised:app`."""

from chaos.worker import from_environment, make_app

app = make_app(from_environment())
