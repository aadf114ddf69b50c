"""Programs of ours that run inside jails: the tests' side of a pair, and tests that must share the candidate's process.

Both are source text, sent as a job; the candidate's side of a pair is the sandbox's own call mode.
"""

from pathlib import Path

import assay.contracts.tagged

TAGGED = Path(assay.contracts.tagged.__file__)

PRELUDE = '''
import json, os, sys

_RESULTS = {}
_STOP = False

class _Ended(BaseException):
    pass

def __assay_check__(number, test):
    """Record whether a test held; a test that is evaluated often holds only if it always does."""
    try:
        held = bool(test() if callable(test) else test)
        note = "it is false"
    except Exception as error:
        held, note = False, f"{type(error).__name__}: {error}"[:300]
    if held:
        _RESULTS.setdefault(number, ["", ""])
    else:
        _RESULTS[number] = ["fail", note]
    if _STOP and not held:
        raise _Ended

def _run_tests(code, names):
    note = ""
    try:
        exec(compile(code, "tests.py", "exec"), names)
    except _Ended as ended:
        note = str(ended)
    except BaseException as error:
        note = f"{type(error).__name__}: {error}"[:300]
    return {"results": {str(number): found for number, found in _RESULTS.items()}, "note": note}
'''

ASKING = (
    PRELUDE
    + '''
import builtins
import tagged

_STREAM = bytearray()
_UNSPLIT = ""

class CandidateError(Exception):
    """An exception of the candidate that is of none of Python's own types."""

def _read(count):
    while len(_STREAM) < count:
        data = os.read(3, 65536)
        if not data:
            raise _Ended("the program ended before it answered")
        _STREAM.extend(data)
    data = bytes(_STREAM[:count])
    del _STREAM[:count]
    return data

def _proxy(name):
    def call(*arguments, **named):
        global _UNSPLIT
        message = {"fn": name, "args": [tagged.tag(each) for each in arguments],
                   "kwargs": {key: tagged.tag(each) for key, each in named.items()},
                   "inout": any(type(each) in (list, dict, set) for each in arguments)}
        if '"t": "object"' in json.dumps(message):
            _UNSPLIT = f"{name} is given something that is not plain data"
            raise _Ended(_UNSPLIT)
        body = json.dumps(message).encode()
        data = memoryview(len(body).to_bytes(4, "big") + body)
        while data:
            try:
                data = data[os.write(3, data):]
            except OSError:
                raise _Ended("the program ended before it was called") from None
        length = int.from_bytes(_read(4), "big")
        if length > 2 * tagged.MAX_BYTES:
            raise _Ended("an answer that is too long")
        body = _read(length)
        try:
            answer = dict(json.loads(body))
            failed, message = answer.get("e"), str(answer.get("m", ""))[:500]
            value = None if failed is not None else tagged.restore(answer["v"])
            changed = [tagged.restore(each) for each in answer.get("a", [])]
        except (KeyError, TypeError, RecursionError, ValueError) as error:
            raise CandidateError(f"an answer that cannot be read: {error}") from None
        if answer.get("i") == -1:
            raise _Ended(f"the program ended at its start: {failed}: {message}"[:300])
        if failed is not None:
            kind = getattr(builtins, str(failed), None)
            if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(kind, UnicodeError):
                kind = CandidateError
            raise kind(message)
        for before, after in zip(arguments, changed):
            _give_back(before, after)
        return value
    return call

def _give_back(before, after):
    """Do to an argument of ours what the candidate did to its copy."""
    if type(before) is not type(after):
        return
    if type(before) is list:
        before[:] = after
    elif type(before) in (dict, set):
        before.clear()
        before.update(after)

def _main():
    global _STOP
    with open("tests.json", encoding="utf-8") as file:
        given = json.load(file)
    _STOP = given["stop"]
    names = {"__name__": "tests", "__assay_check__": __assay_check__}
    names.update((name, _proxy(name)) for name in given["functions"])
    answer = _run_tests(given["code"], names)
    answer["unsplit"] = _UNSPLIT
    sys.stdout.flush()
    print("\\n" + given["mark"] + json.dumps(answer), flush=True)

_main()
'''
)
"""The tests' side of a pair. Reads `tests.json` (code, functions, stop, mark); prints the mark and the results last."""

SHARED = (
    PRELUDE
    + """
def run_tests():
    global _STOP
    with open("tests.json", encoding="utf-8") as file:
        given = json.load(file)
    os.unlink("tests.json")
    _STOP = given["stop"]
    import types
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    exec(compile(given["program"], "main.py", "exec"), module.__dict__)
    module.__dict__["__assay_check__"] = __assay_check__
    return json.dumps(_run_tests(given["code"], module.__dict__))
"""
)
"""Candidate and tests in one process, in call mode: `run_tests()` returns the results as JSON."""
