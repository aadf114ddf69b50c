"""assay's rewards inside other trainers; one module per host, which itself is never imported here.

Every module has `reward(*rewards, ...)`: names as after `-r`, or tables as in a config. Judging runs in a thread and an
event loop of its own, and whatever may hang in assay's killable workers, so the host may call from any thread, with or
without a running loop.

What the candidate caused gets its declared score everywhere. What we caused has no number, and each host is told so in
its own way: TRL gets `None`, verifiers an error, verl and OpenRLHF, which know no missing reward, a number only where
`masked=` names one.
"""
