"""The HTTP reward server behind `assay serve`; needs the extra `server`.

| module | is |
|---|---|
| `settings` | what the operator chooses, checked in one sentence each |
| `wire` | bodies of requests and answers |
| `admission` | pure: the bounded queue and when a refused client should come again |
| `service` | the open panel: judges a request's items within its deadline |
| `gate` | before any route: Host, token, size and pace of the body |
| `app` | the routes `/v1/score`, `/v1/sources`, `/healthz`, `/metrics` |
| `hosts` | routes shaped for other trainers |
| `metrics` | counts and latencies for Prometheus |
| `process` | socket, signals, and the drain at the end |

Guaranteed: every item of an answered request has a status, in the request's order and under its id, and a value if and
only if it is scored; nothing that a client sends makes the server answer 5xx or stop; at most `queue` items are held.
The server keeps nothing: whoever asks stores what it was told (`explain` adds evidence and provenance).
"""
