"""Headrace beside its peers: ``python -m bench peers``.

roster.py      who is measured, in which versions
venvs.py       a virtual environment for each, made on demand
contract.py    what every adapter program is told and does; runs inside those environments
adapters/      one program a peer: its worker and its enqueuer, with fair settings
stage.py       a server, workers and an enqueuer of one peer
rate.py, faults.py             what is measured
findings.py, page.py, chart.py what is told
"""
