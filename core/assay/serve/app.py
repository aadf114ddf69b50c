"""The routes of the reward server, described by its OpenAPI at `/openapi.json`."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

import pydantic_core
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from assay import __version__
from assay.errors import ConfigError, JudgingError
from assay.serve import hosts
from assay.serve.gate import Gate
from assay.serve.metrics import CONTENT_TYPE, Metrics
from assay.serve.service import BusyError, Service, TooManyError
from assay.serve.settings import Settings
from assay.serve.wire import FieldProblem, Health, Problem, ScoreAnswer, ScoreRequest, SourcesAnswer

REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The body is no JSON, or broke off."},
    401: {"model": Problem, "description": "The token is missing or wrong."},
    408: {"model": Problem, "description": "The body did not arrive in time."},
    413: {"model": Problem, "description": "The body is too large, or has more items than the server holds."},
    421: {"model": Problem, "description": "The Host is not this server."},
    422: {"model": Problem, "description": "The body is not what the route takes; `errors` name the fields."},
    429: {"model": Problem, "description": "No room now; Retry-After says when to come again."},
}
NO_REWARD: dict[int | str, dict[str, Any]] = {
    424: {"model": Problem, "description": "An answer has no reward, and the address names no number for it."}
}

NO_OBJECT = FieldProblem(field="body", message="expected a JSON object")
NO_CONTENT_TYPE = f"{NO_OBJECT.message}; send one with the header Content-Type: application/json"


class _StrictRequest(Request):
    """A request whose JSON has no NaN, no lone surrogate and no nesting without end."""

    async def json(self) -> Any:
        try:
            return pydantic_core.from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from error


class _StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(_StrictRequest(request.scope, request.receive))

        return strict


def build_app(service: Service, settings: Settings, *, metrics: Metrics, check_host: bool) -> Gate:
    """The ASGI application around an open service."""
    app = FastAPI(
        title="assay",
        version=__version__,
        summary="Rewards that can be trusted, over HTTP.",
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
    )
    _add_refusals(app)
    app.include_router(_routes(service, settings, metrics))
    app.include_router(_host_routes(service, settings))
    known = frozenset(_described(app, service)["paths"])
    return Gate(app, settings, check_host=check_host, routes=known, count=metrics.request)


def _described(app: FastAPI, service: Service) -> dict[str, Any]:
    """The OpenAPI document, with the names of this server's rewards in it."""
    document = app.openapi()
    asked = document["components"]["schemas"]["ScoreRequest"]["properties"]["rewards"]["anyOf"][0]
    asked["items"]["enum"] = [entry.name for entry in service.panel.entries]
    return document


def _routes(service: Service, settings: Settings, metrics: Metrics) -> APIRouter:
    router = APIRouter(route_class=_StrictRoute)

    @router.post("/v1/score", response_model=ScoreAnswer, responses=REFUSALS)
    async def score(asked: ScoreRequest) -> Response:
        """Judge answers: one item per item, in order, under the same ids."""
        items = await service.score(
            asked.items,
            only=service.chosen(asked.rewards),
            deadline_s=min(asked.deadline_s or settings.deadline_s, settings.deadline_s),
            explain=asked.explain,
        )
        answer = ScoreAnswer(items=tuple(items))
        metrics.items(answer.items)
        return _json(answer)

    @router.get("/v1/sources", response_model=SourcesAnswer, responses=_some(401, 421))
    async def sources() -> Response:
        """What this server judges with, and how it has fared."""
        return _json(SourcesAnswer(rewards=service.facts()))

    @router.get("/healthz", response_model=Health, responses=_some(421))
    async def healthz() -> Response:
        """Whether the server takes requests; needs no token."""
        admission = service.admission
        return _json(Health(status=service.status, held=admission.held, queue=admission.queue))

    @router.get(
        "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}, **_some(401, 421)}
    )
    async def counts() -> Response:
        """Counts and latencies for Prometheus."""
        return Response(metrics.text(service), media_type=CONTENT_TYPE)

    return router


def _host_routes(service: Service, settings: Settings) -> APIRouter:
    router = APIRouter(route_class=_StrictRoute, responses={**REFUSALS, **NO_REWARD})

    @router.post("/openrlhf", response_model=hosts.OpenRlhfAnswer)
    async def openrlhf(asked: hosts.OpenRlhfRequest, masked: hosts.Finite | None = None) -> Response:
        """The shape of OpenRLHF's `--reward.remote_url`; `masked` is the reward of what we could not judge."""
        return _json(await hosts.openrlhf(service, asked, masked=masked, deadline_s=settings.deadline_s))

    @router.post("/slime", response_model=float)
    async def slime(asked: hosts.SlimeRequest, masked: hosts.Finite | None = None) -> Response:
        """The shape of slime's `remote_rm`; `masked` is the reward of what we could not judge."""
        return JSONResponse(await hosts.slime(service, asked, masked=masked, deadline_s=settings.deadline_s))

    return router


def _add_refusals(app: FastAPI) -> None:
    """Every refusal has one form: a sentence, and the fields where there are any."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        problems = _field_problems(error)
        if problems[0] == NO_OBJECT and "json" not in request.headers.get("content-type", ""):
            problems[0] = NO_OBJECT.model_copy(update={"message": NO_CONTENT_TYPE})
        return _refuse(422, f"{problems[0].field}: {problems[0].message}", errors=tuple(problems))

    @app.exception_handler(ConfigError)
    async def mistaken(_request: Request, error: ConfigError) -> Response:
        field, _, message = str(error).partition(": ")
        return _refuse(422, str(error), errors=(FieldProblem(field=field, message=message),))

    @app.exception_handler(JudgingError)
    async def unscored(_request: Request, error: JudgingError) -> Response:
        return _refuse(424, str(error))

    @app.exception_handler(TooManyError)
    async def too_many(_request: Request, error: TooManyError) -> Response:
        return _refuse(413, str(error))

    @app.exception_handler(BusyError)
    async def busy(_request: Request, error: BusyError) -> Response:
        return _refuse(429, str(error), headers={"Retry-After": str(error.retry_after_s)})

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        where = f"{request.method} {request.url.path}"
        return _refuse(error.status_code, f"{where}: {error.detail}", headers=dict(error.headers or {}))

    del invalid, mistaken, unscored, too_many, busy, unknown  # the decorator has registered them


def _field_problems(error: RequestValidationError) -> list[FieldProblem]:
    """At most twenty; that a list is short of the items which are complained of already is not said as well."""
    details: list[Any] = list(error.errors())
    first = [detail for detail in details if detail["type"] != "too_short"] or details
    return [_field_problem(detail) for detail in first[:20]]


def _field_problem(detail: Any) -> FieldProblem:
    place, location = "", list(detail["loc"][1:])
    if detail["type"] == "finite_number" and location[-1:] == ["float"]:
        location.pop()  # pydantic's name of the kind of JSON
    for part in location:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else str(part)
    if detail["type"] == "json_invalid":
        return FieldProblem(field="body", message=f"it is no JSON: {detail['ctx']['error']}")
    if detail["type"] == "model_attributes_type" and not location:
        return NO_OBJECT
    if detail["type"] == "extra_forbidden":
        return FieldProblem(field=place, message="unknown key; see /openapi.json")
    message = str(detail["msg"]).removeprefix("Value error, ")
    return FieldProblem(field=place or str(detail["loc"][0]), message=f"{message[:1].lower()}{message[1:]}")


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")


def _refuse(
    code: int, detail: str, *, errors: tuple[FieldProblem, ...] = (), headers: dict[str, str] | None = None
) -> Response:
    answer = Problem(detail=_shown(detail), errors=errors)
    return Response(answer.model_dump_json(), status_code=code, media_type="application/json", headers=headers)


def _shown(text: str) -> str:
    """Text that can be sent, however it came in: paths may hold anything."""
    return text.encode("utf-8", "replace").decode("utf-8")[:2000]


def _some(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {code: REFUSALS[code] for code in codes}
