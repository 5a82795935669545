"""Which of the workers that have room gets a request: filters, scorers and a picker, each a small named plug-in.

    candidates --filters--> fewer --scorers--> weighted sum of costs --picker--> one of them

`plugins.py` names them all; `policies.py` puts them together, for routing.yaml and by the names of known rules.
"""
