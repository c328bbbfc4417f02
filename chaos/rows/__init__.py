"""The rows of the fault programme, as data; chaos.scenarios puts them in order."""
