"""C++, C, JavaScript, shell, and languages from the options, through the same jails."""

import asyncio
import shutil
from collections.abc import Callable

import pytest

from assay.contracts.sandbox import Job, JobLimits, RunResult
from assay.errors import SandboxError
from assay_sandboxes.options import Language
from assay_sandboxes.sandbox import JailedSandbox

OpenTier = Callable[..., JailedSandbox]
pytestmark = pytest.mark.bubblewrap
CPP = "#include <iostream>\nint main() { long a, b; std::cin >> a >> b; std::cout << a + b << std::endl; }"
JS = 'const [a, b] = require("fs").readFileSync("/dev/stdin", "utf8").split(" ").map(Number); console.log(a + b)'


def _need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


def _run(sandbox: JailedSandbox, language: str, source: str, *stdins: str, **limits: float) -> list[RunResult]:
    async def run() -> list[RunResult]:
        bounds = JobLimits.model_validate(limits)
        jobs = [Job(language=language, source=source, stdin=stdin, limits=bounds) for stdin in stdins or ("",)]
        return [result async for result in sandbox.run_each(jobs)]

    return asyncio.run(run())


@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_cpp_is_built_once_and_run_for_each_input(tier: str, open_tier: OpenTier) -> None:
    _need("g++")
    sandbox = open_tier(tier)
    assert "g++" in sandbox.require(["c++"])["cpp"]
    results = _run(sandbox, "cpp", CPP, "2 3", "40 2", "-1 1")
    assert [result.stdout for result in results] == ["5\n", "42\n", "0\n"]
    assert all("g++" in result.tool and result.tier == tier for result in results)


def test_a_compile_error_is_the_programs_failure_with_the_compilers_words(open_tier: OpenTier) -> None:
    _need("g++")
    (result,) = _run(open_tier("bubblewrap"), "cpp", "int main() { return missing; }")
    assert result.outcome == "build_failed"
    assert "missing" in result.build_log


def test_cpp_limits_and_crashes(open_tier: OpenTier) -> None:
    _need("g++")
    sandbox = open_tier("bubblewrap")
    (crash,) = _run(sandbox, "cpp", "int main() { int* p = nullptr; return *p; }")
    assert crash.outcome == "crashed"
    (spin,) = _run(sandbox, "cpp", "int main() { for (volatile long n = 0;; ++n); }", cpu_s=1, wall_s=20)
    assert spin.outcome == "timed_out"
    (bomb,) = _run(
        sandbox,
        "cpp",
        "#include <vector>\nint main() { std::vector<char> v(1u << 30, 1); return v[5]; }",
        memory_mib=64,
    )
    assert bomb.outcome == "out_of_memory"
    (fork,) = _run(
        sandbox, "cpp", '#include <unistd.h>\n#include <cstdio>\nint main() { printf("%d\\n", fork() < 0); }'
    )
    assert fork.stdout == "1\n"


@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_javascript_reads_its_input_as_programs_do(tier: str, open_tier: OpenTier) -> None:
    _need("node")
    sandbox = open_tier(tier)
    # Without a file system of its own a jail has no /dev/stdin.
    source = JS.replace('"/dev/stdin"', "0") if tier == "landlock" else JS
    (result,) = _run(sandbox, "js", source, "2 3", cpu_s=10, wall_s=30)
    assert result.stdout == "5\n"


def test_javascript_memory_is_bounded(open_tier: OpenTier) -> None:
    _need("node")
    source = "const a = []; for (;;) a.push(new Array(1000).fill(1.5));"
    (result,) = _run(open_tier("bubblewrap"), "javascript", source, cpu_s=20, wall_s=40, memory_mib=128)
    assert result.outcome == "out_of_memory"
    assert result.peak_memory_mib < 400


def test_python_programs_that_read_dev_stdin(open_tier: OpenTier) -> None:
    (result,) = _run(open_tier("bubblewrap"), "python", "print(open('/dev/stdin').read()[::-1])", "abc")
    assert result.stdout == "cba\n"


def test_a_language_from_the_options(open_tier: OpenTier) -> None:
    row = Language(file="prog.awk", run=("/usr/bin/awk", "-f", "{source}"), version=("/usr/bin/awk", "-W", "version"))
    sandbox = open_tier("bubblewrap", languages={"awk": row})
    (result,) = _run(sandbox, "awk", "{ print $1 + $2 }", "2 3\n")
    assert result.stdout == "5\n"


def test_a_missing_compiler_is_found_before_anything_runs(open_tier: OpenTier) -> None:
    row = Language(
        file="x.zz", build=("/usr/bin/zzc", "{source}"), run=("./{program}",), version=("/usr/bin/zzc", "-v")
    )
    sandbox = open_tier("bubblewrap", languages={"zz": row})
    with pytest.raises(SandboxError, match=r"'zz' need /usr/bin/zzc, which cannot be started"):
        sandbox.require(["zz"])
    with pytest.raises(SandboxError, match="could not be started"):
        _run(sandbox, "zz", "anything")
    with pytest.raises(SandboxError, match=r"no language named 'pyton'.*Did you mean 'python'"):
        sandbox.require(["pyton"])
